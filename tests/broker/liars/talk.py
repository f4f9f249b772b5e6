"""A broker's real server, without sockets, on a clock of the test's own; what peers say to it."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import zmq

from headrace.broker.config import BrokerConfig
from headrace.broker.ledger.ledger import Ledger
from headrace.broker.ledger.state import LedgerState
from headrace.broker.protocol import hello_payload, messages
from headrace.broker.protocol.bundles import is_own, split
from headrace.broker.protocol.hello_payload import HelloPayload
from headrace.broker.protocol.messages import Message, Payload, Unroll
from headrace.broker.server.connections.counters import Counters
from headrace.broker.server.connections.roster import Roster
from headrace.broker.server.server import Server
from headrace.broker.weights.blobs import Blob

A, B, L, M, W = b"sampler a", b"sampler b", b"learner", b"other learner", b"watcher"
NOTHING = HelloPayload()
FAR = 1 << 35  # a version that nobody reaches


class Frame:
    """What the server looks at of a zmq.Frame, with a key's user."""

    address = "10.0.0.7"

    def __init__(self, data: bytes, user: str) -> None:
        self.buffer, self.bytes, self._user = memoryview(data), data, user

    def __len__(self) -> int:
        return len(self.bytes)

    def get(self, option: str) -> str:
        return {"User-Id": self._user, "Peer-Address": self.address}[option]


class Broker:
    """One server; everything it sends is kept."""

    now = 100.0

    def __init__(self, gate: Any = None, *, max_lag: int = 1, **limits: Any) -> None:
        self.sent: list[tuple[bytes, Message]] = []
        self.leaving: list[Callable[[], None]] = []  # to be told, when the loop turns
        self.closed: set[bytes] = set()  # routes whose connection is gone
        self.deaf: set[bytes] = set()  # routes that take nothing
        self.all: list[tuple[bytes, Message]] = []  # that was ever sent
        self._bodies: list[tuple[bytes, messages.Bundle, list[bytes]]] = []  # of bundles
        state = LedgerState(
            batch=4, max_lag=max_lag, max_lag_hard=50, queue_bytes=10**6, attempts=3, first_tag=1000
        )
        more = {} if gate is None else {"gate": gate}
        self.server = Server(
            BrokerConfig(beat_s=1.0, lease_s=10.0, **limits),
            Ledger(state, lease_s=10.0),
            Counters(),
            inc=9,
            shared={},
            roster=Roster("run", lambda _: None),
            announce="tcp://broker:2",
            router=cast(Any, self),
            publisher=cast(Any, self),
            **more,
        )
        self.state, self.ledger = state, self.server.ledger
        self.errors = self.server.counters.dropped

    def send(self, frames: Sequence[Payload], left: Callable[[], None] | None = None) -> bool:
        parts = [f.bytes if isinstance(f, zmq.Frame | Frame) else bytes(f) for f in frames]
        if len(parts[0]) != 16 or parts[0][:2] != b"HR":  # else it goes to all
            message, buffers = messages.decode(parts[1:])
            if parts[0] in self.deaf:
                return False
            said = [message]
            if isinstance(message, messages.Bundle) and is_own(message):
                said = [messages.decode(inner)[0] for _, inner in split(message, buffers)]
            elif isinstance(message, messages.Bundle):
                self._bodies.append((parts[0], message, [bytes(one) for one in buffers]))
            self.sent += [(parts[0], one) for one in said]
            self.all += [(parts[0], one) for one in said]
        if left is not None:
            self.leaving.append(left)  # everybody reads
        return True

    def reaches(self, frames: Sequence[Payload]) -> bool:
        return bytes(_bytes(frames[0])) not in self.closed

    def hears(self, route: bytes, message: Message, *buffers: bytes, user: str = "") -> None:
        frames = [
            Frame(route, user),
            *(Frame(_bytes(f), user) for f in messages.encode(message, *buffers)),
        ]
        self.server._receive(cast(Any, frames))
        while self.leaving:
            self.leaving.pop(0)()

    def pump(self) -> list[tuple[bytes, Message]]:
        """What the server said since the last time."""
        self.server._pump()
        sent, self.sent = self.sent, []
        return sent

    def bundles(self, route: bytes) -> list[tuple[messages.Bundle, list[bytes]]]:
        """The bundles that went there since the last time, with their buffers."""
        found = [(one, body) for to, one, body in self._bodies if to == route]
        self._bodies = [one for one in self._bodies if one[0] != route]
        return found

    def told(self, kind: type[Message]) -> list[Any]:
        return [message for _, message in self.pump() if isinstance(message, kind)]

    def hello(
        self, route: bytes, hello: messages.Hello, intro: HelloPayload = NOTHING, user: str = ""
    ) -> None:
        self.hears(route, hello, hello_payload.encode(intro), user=user)

    def sampler(
        self, route: bytes = A, inc: int = 1, streams: int = 1, user: str = "", **other: Any
    ) -> None:
        """Says HELLO as one that has just started."""
        intro = HelloPayload(streams=tuple((n, 0, 0, 0, ()) for n in range(streams)))
        hello = messages.Hello("actor", f"a{inc}", inc, spaces="s", **{"version": 0, **other})
        self.hello(route, hello, intro, user)

    def learner(
        self,
        route: bytes = L,
        inc: int = 50,
        *,
        rank: int = 0,
        world: int = 1,
        version: int = 0,
        spaces: str = "s",
        user: str = "",
        group: int = 0,
        take_over: bool = False,
        fresh: bool = False,
        **intro: Any,
    ) -> None:
        hello = messages.Hello(
            "learner",
            f"l{inc}",
            inc,
            spaces=spaces,
            rank=rank,
            world=world,
            version=version,
            group=group,
            take_over=take_over,
            fresh=fresh,
        )
        self.hello(route, hello, HelloPayload(**{"want": 8, "unroll_bytes": 100, **intro}), user)

    def unrolls(self, seqs: Sequence[int], route: bytes = A, inc: int = 1, **other: Any) -> None:
        for seq in seqs:
            fields = {"floor": 0, "version_min": 0, "version_max": 0, "steps": 8, "digest": 1}
            self.hears(route, Unroll(inc, 0, seq, **{**fields, **other}), b"x" * 100)

    def tags(self) -> list[int]:
        return [tag for s in self.state.leases.sessions.values() for tag in s.leases]


def _bytes(frame: Payload) -> bytes:
    return frame.bytes if isinstance(frame, zmq.Frame) else bytes(frame)


def works(one: Broker, tags: Sequence[int]) -> None:
    """The honest learner trains on what it has, and the sampler hears of it."""
    ranges = tuple((tag, tag + 1) for tag in tags)
    one.hears(L, messages.Done(50, one.state.credit.version + 1, 100, ranges))
    acks = one.told(messages.Ack)
    assert sum(hi - lo for ack in acks for _, lo, hi in ack.ranges) == len(tags)


def publish(one: Broker, route: bytes, version: int, body: bytes = b"weights") -> None:
    blob = Blob.of(version, "layout", body)
    chunk, view = blob.first()
    one.hears(route, blob.announce)
    one.hears(route, chunk, bytes(view))
