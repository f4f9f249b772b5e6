"""Small unrolls for a learner travel in bundles, and arrive each as it is."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from headrace.broker.protocol import messages, releases
from headrace.broker.protocol.bundles import OWN, bytes_of, join
from headrace.broker.protocol.messages import Bundle, Deliver, Mark, Message, Payload, Reached
from headrace.broker.server.connections.counters import Counters
from headrace.broker.server.connections.replies import Replies
from headrace.broker.server.connections.roster import Peer, Roster
from headrace.broker.transport.link import Link

LEARNER = b"learner"


def deliver(tag: int) -> Deliver:
    return Deliver(
        tag, attempt=1, actor="a1", inc=1, stream=0, seq=tag, floor=0, version_min=0,
        version_max=0, steps=1, digest=0, ended=0, episodes=(),
    )  # fmt: skip


class Line:
    """Stands for the router, and for the learner at its other end."""

    inc = 1

    def __init__(self) -> None:
        self.sent: list[list[bytes]] = []  # without the route
        self.heard: list[tuple[Message, list[bytes]]] = []
        self.room = 10**9  # messages that it takes
        self.waiting: list[Message] = []  # that the learner said, and the broker has not heard
        self.link = Link("tcp://127.0.0.1:1", cast(Any, self), cast(Any, None))
        self.link.welcome = messages.Welcome(9, "run", 1.0, 10.0, "", 0)
        self.link.send = self.answers  # type: ignore[method-assign]
        self.tags = itertools.count()
        self.replies: Replies
        self.peer: Peer

    def send(self, frames: Sequence[Payload], left: Callable[[], None] | None = None) -> bool:
        if not self.room:
            return False
        self.room -= 1
        self.sent.append([bytes(bytes_of(frame)) for frame in frames[1:]])
        self.link._dispatch(self.sent[-1])
        if left is not None:
            left()
        return True

    def answers(self, frames: Sequence[Payload]) -> bool:
        """Says that the learner has read so far."""
        message, _ = messages.decode([bytes_of(frame) for frame in frames])
        self.waiting.append(message)
        return True

    def turn(self) -> None:
        """Lets the broker hear what the learner said."""
        while self.waiting:
            message = self.waiting.pop(0)
            assert isinstance(message, Reached)
            self.replies.reached(self.peer, message)

    def handle(self, message: Message, buffers: Sequence[Any]) -> None:
        self.heard.append((message, [bytes(one) for one in buffers]))

    @property
    def kinds(self) -> list[type[Message]]:
        """The types of what was sent, without marks."""
        kinds = [messages.kind(frames) for frames in self.sent]
        return [kind for kind in kinds if kind is not Mark]


def broker(protocol: int = releases.PROTOCOL) -> tuple[Line, Counters]:
    line, counters, roster = Line(), Counters(), Roster("run", lambda _: None)
    line.peer = Peer(LEARNER, "learner", "l", 50, 0.0, protocol=protocol)
    line.replies = Replies(cast(Any, line), roster, counters, 10.0, 10**9)
    roster.join(line.peer)
    for _ in range(50):  # it finds out that the line is fast
        give(line, [10_000])
        line.turn()
    line.heard.clear()
    line.sent.clear()
    counters.messages.clear()
    return line, counters


def give(line: Line, sizes: Sequence[int]) -> list[tuple[Message, list[bytes]]]:
    """Delivers unrolls of these sizes in one turn."""
    given: list[tuple[Message, list[bytes]]] = []
    for size in sizes:
        tag = next(line.tags)
        body = [bytes([tag % 256]) * size]
        given.append((deliver(tag), body))
        line.replies.bulk(line.peer, tag, deliver(tag), *body)
    line.replies.flush()
    return given


@pytest.mark.parametrize(
    ("sizes", "kinds"),
    [
        ([100] * 5, [Bundle]),
        ([100], [Deliver]),
        ([100, 20_000, 100, 100], [Deliver, Deliver, Bundle]),
        ([10_000] * 13, [Bundle] * 2 + [Deliver]),  # 64 kB each
        ([0] * 3, [Bundle]),
    ],
)
def test_those_of_one_turn_are_joined_in_order(
    sizes: list[int], kinds: list[type[Message]]
) -> None:
    line, counters = broker()
    given = give(line, sizes)
    line.turn()
    assert line.kinds == kinds
    assert line.heard == given
    assert counters.messages["out", Deliver] == len(sizes)


def test_a_learner_of_the_release_before_gets_each_by_itself() -> None:
    line, _ = broker(releases.OLDEST)
    given = give(line, [100] * 3)
    assert line.kinds == [Deliver] * 3
    assert [frames[0][2] for frames in line.sent[:3]] == [releases.OLDEST] * 3
    assert line.heard == given


@pytest.mark.parametrize("room", [0, 1])
def test_what_finds_no_room_waits_each_by_itself_and_comes_in_order(room: int) -> None:
    line, counters = broker()
    line.room = room
    given = give(line, [10_000] * 13)
    assert line.peer.bulk is not None and len(line.peer.bulk) == 13 - len(line.heard)
    line.room = 10**9
    given += give(line, [100] * 2)  # behind those that wait
    line.turn()
    assert line.heard == given
    assert counters.messages["out", Deliver] == len(given)


def test_nothing_is_taken_out_of_a_bundle_but_unrolls(caplog: pytest.LogCaptureFixture) -> None:
    line, _ = broker()
    inner = messages.encode(deliver(1), b"body")
    nested = join([(OWN, inner)])
    line.link._dispatch([bytes_of(frame) for frame in join([(OWN, nested), (OWN, inner)])])
    assert line.heard == [(deliver(1), [b"body"])]
    sizes = (tuple(map(len, inner)),)
    damaged = messages.encode(Bundle(((OWN, sizes[0]),)), b"short")
    line.link._dispatch([bytes_of(frame) for frame in damaged])
    assert len(line.heard) == 1
    assert any("sent what is no message: sizes in a bundle" in told for told in caplog.messages)
