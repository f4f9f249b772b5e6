"""The samplers of a relay: numbered, bundled, their figures summed, and none is lost in between."""

from collections.abc import Iterator

import pytest

from headrace.broker.peers import members as module
from headrace.broker.peers.members import Members
from headrace.broker.protocol.bundles import bytes_of, split
from headrace.broker.protocol.messages import (
    Acting,
    Announce,
    Bundle,
    Bye,
    Hello,
    Mark,
    MembersActing,
    Message,
    Payload,
    Ping,
    Welcome,
    decode,
    encode,
)

A, B = b"sampler a", b"sampler b"
WEIGHTS = Announce(3, "layout", "digest", 10, 10, b"h" * 8)


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    one = Clock()
    monkeypatch.setattr(module, "time", one)
    return one


@pytest.fixture
def members(clock: Clock) -> Iterator[Members]:
    assert clock
    yield Members()


def read(frames: object) -> Message:
    assert isinstance(frames, list | tuple)
    return decode([bytes_of(frame) for frame in frames])[0]


def waiting(members: Members) -> list[tuple[int, Message]]:
    """Returns what goes out, for whom; 0 = one message for several."""
    found: list[tuple[int, Message]] = []
    for frames in members.take():
        message, buffers = decode([bytes_of(frame) for frame in frames])
        if isinstance(message, Bundle):
            found += [(number, decode(inner)[0]) for number, inner in split(message, buffers)]
        else:
            found.append((0, message))
    return found


def greets(members: Members, route: bytes, inc: int, *, connected: bool = True) -> None:
    members.said(route, encode(Hello("actor", f"a{inc}", inc)), connected=connected)


def beats(
    members: Members, route: bytes, *, version: int = 3, connected: bool = True, **stats: float
) -> list[Message]:
    said = members.said(route, encode(Ping((), stats, version)), connected=connected)
    assert all(to == route for to, _ in said)
    return [read(frames) for _, frames in said]


def test_each_connection_has_a_number_of_its_own_and_answers_find_it(members: Members) -> None:
    greets(members, A, 1)
    greets(members, B, 2)
    members.said(A, encode(Mark(7)), connected=True)
    numbers = [number for number, _ in waiting(members)]
    assert numbers == [1, 2, 1]
    frames: list[Payload] = encode(Mark(8))
    assert members.told(2, frames) == ((B, frames),)
    assert members.told(3, frames) == (), "nobody"


def test_who_says_the_same_of_weights_is_named_in_one_message(members: Members) -> None:
    for inc, route in enumerate((A, B, b"c")):
        greets(members, route, inc + 1)
    waiting(members)
    members.said(A, encode(Acting(2, "two")), connected=True)
    members.said(A, encode(Acting(3, "three")), connected=True)  # in place of the one before
    members.said(B, encode(Acting(2, "two")), connected=True)
    members.said(B, encode(Mark(7)), connected=True)
    members.said(b"c", encode(Acting(3, "three")), connected=True)
    members.said(B, encode(Mark(8)), connected=True)
    assert waiting(members) == [
        (0, MembersActing(3, "three", (1, 3))),
        (0, MembersActing(2, "two", (2,))),
        (2, Mark(7)),
        (2, Mark(8)),
    ]
    assert waiting(members) == []


def test_more_than_one_message_holds_are_named_in_two(members: Members) -> None:
    for inc in range(1, 66):
        members.said(b"%d" % inc, encode(Acting(2, "two")), connected=True)
    assert [len(getattr(message, "members", ())) for _, message in waiting(members)] == [64, 1]


def test_without_a_broker_only_a_greeting_is_kept_the_newest(members: Members) -> None:
    greets(members, A, 1, connected=False)
    members.said(A, encode(Mark(1)), connected=False)
    greets(members, A, 2, connected=False)
    assert waiting(members) == []
    members.connected()
    assert waiting(members) == [(1, Hello("actor", "a2", 2))]
    members.connected()
    assert waiting(members) == [], "once"


def test_beats_wait_for_the_relay_s_and_bring_no_figures_there(members: Members) -> None:
    greets(members, A, 1)
    greets(members, B, 2)
    members.take()
    beats(members, A, env_steps=10, unacked=2, clock=5)
    beats(members, A, env_steps=15, unacked=1, clock=6)
    beats(members, B, env_steps=100, unacked=3, made_up=9)
    assert waiting(members) == []
    figures, said = members.beat(since=0.0)
    assert figures == {"env_steps": 115.0, "unacked": 4.0, "unaccounted": 0.0}
    assert [(number, read(frames)) for number, frames in said] == [
        (1, Ping((), {}, 3)),
        (1, Ping((), {}, 3)),
        (2, Ping((), {}, 3)),
    ]
    assert members.beat(since=0.0)[1] == [], "once"


def test_sums_never_fall_and_count_nothing_twice(members: Members, clock: Clock) -> None:
    clock.now += 2
    greets(members, A, 1)
    beats(members, A, env_steps=10, unacked=2, wall_s=1)
    clock.now += 10
    members.said(A, encode(Bye(1, False, "done")), connected=True)
    assert members.beat(since=0.0)[0] == {
        "env_steps": 10,
        "wall_s": 1,
        "unacked": 0,
        "unaccounted": 0,
    }
    greets(members, B, 1)  # the same one, by a new connection
    beats(members, B, env_steps=14, unacked=1, wall_s=2)
    assert members.beat(since=0.0)[0]["env_steps"] == 14
    clock.now += 1
    greets(members, b"old", 3)  # it played for longer than this relay lives: another one counted
    beats(members, b"old", env_steps=1000, wall_s=500)
    beats(members, b"old", env_steps=1003, wall_s=501)
    assert members.beat(since=0.0)[0]["env_steps"] == 17


def test_one_that_was_killed_is_forgotten_with_what_it_had_open(
    members: Members, clock: Clock
) -> None:
    """It said no farewell; what it did counts, what it held does not any more."""
    for route, inc in ((A, 1), (B, 2)):
        greets(members, route, inc)
        beats(members, route, env_steps=10, unacked=2)
    assert members.beat(since=0.0)[0]["unacked"] == 4
    clock.now += 11
    beats(members, B, env_steps=12, unacked=1)
    figures, _ = members.beat(since=clock.now - 10)
    assert (figures["env_steps"], figures["unacked"]) == (22, 1)
    assert members.told(1, encode(Mark(1))) == (), "nobody"
    assert [to for to, _ in members.announced(WEIGHTS)] == [B]
    beats(members, A, env_steps=15)  # it was only stopped: another connection to the broker
    members.said(A, encode(Mark(1)), connected=True)
    assert [number for number, one in waiting(members) if isinstance(one, Mark)] == [3]


def test_the_beats_of_one_that_left_are_not_sent_behind_it(members: Members) -> None:
    greets(members, A, 1)
    beats(members, A, env_steps=10)
    members.said(A, encode(Bye(1, False, "done")), connected=True)
    assert [type(one) for _, one in waiting(members)] == [Hello, Bye]
    assert members.beat(since=0.0)[1] == []


def test_many_beats_of_one_are_not_all_kept(members: Members) -> None:
    greets(members, A, 1)
    for _ in range(100):
        beats(members, A)
    assert len(members.beat(since=0.0)[1]) == 16
    beats(members, A, connected=False)
    assert members.beat(since=0.0)[1] == []


def test_weights_are_announced_to_all_and_again_to_who_is_behind(members: Members) -> None:
    greets(members, A, 1)
    members.said(B, encode(Mark(1)), connected=True)  # it has not greeted
    assert [to for to, _ in members.announced(WEIGHTS)] == [A]
    assert beats(members, A, version=2) == [WEIGHTS]
    assert beats(members, A, version=3) == []
    welcome = Welcome(9, "run", 1.0, 10.0, "tcp://x:1", 3)
    (_, first), (to, then) = members.told(1, encode(welcome))
    assert (read(first), to, read(then)) == (welcome, A, WEIGHTS)


def test_of_another_broker_hears_who_did_not_greet_it_already(members: Members) -> None:
    greets(members, A, 1)
    greets(members, B, 2)
    greets(members, b"c", 3)
    members.said(B, encode(Bye(2, False, "done")), connected=True)
    greets(members, b"c", 3, connected=False)  # goes to the new one when that is there
    assert members.resync([b"frames"]) == [(A, [b"frames"])]


def test_who_is_still_there(members: Members, clock: Clock) -> None:
    greets(members, A, 1)
    greets(members, B, 2)
    assert members.heard_since(clock.now) == 2
    members.said(B, encode(Bye(2, False, "done")), connected=True)
    clock.now += 5
    assert members.heard_since(clock.now - 5) == 1
    assert members.heard_since(clock.now - 4) == 0, "it says nothing any more"


@pytest.mark.parametrize(
    "frames",
    [[], [b"x"], [b"HR", b"y"], [bytes(16), b"y"], [encode(Acting(3, "three"))[0], b"no header"]],
)
def test_nonsense_goes_on_to_who_counts_it(members: Members, frames: list[bytes]) -> None:
    members.said(A, frames, connected=True)
    ((prefix, header, *buffers),) = members.take()
    bundle, bodies = decode([bytes_of(frame) for frame in (prefix, header, *buffers)])
    assert isinstance(bundle, Bundle)
    assert [(number, [bytes(one) for one in told]) for number, told in split(bundle, bodies)] == [
        (1, frames or [b""])  # none at all is an empty one to the broker
    ]
    broken = encode(Ping((), {}))
    members.said(A, [broken[0], b"\xc1"], connected=True)
    hello = encode(Hello("actor", "a", 1))
    members.said(A, [hello[0], b"\xc1"], connected=True)
    assert members.heard_since(0.0) == 0


def test_connections_are_bounded(members: Members, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST", 3)
    for number in range(5):
        greets(members, b"%d" % number, number + 1)
    frames = encode(Mark(1))
    assert [len(members.told(number, frames)) for number in range(1, 6)] == [0, 0, 1, 1, 1]
