"""Lines for the tests, without sockets and clocks: so many bytes a second each way, shared by all
connections over it, with a queue that has no end. Both ends of every connection are the real ones.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Hashable, Sequence

from headrace.broker.protocol.messages import (
    Mark,
    Message,
    Open,
    Payload,
    Piece,
    Reached,
    Unroll,
    decode,
    encode,
)
from headrace.broker.transport.bulk.reassembly import Reassembly, opened
from headrace.broker.transport.bulk.sender import BulkSender

_OVERHEAD = 60  # bytes of framing of a message, for all layers


def unroll(seq: int, *parts: bytes) -> list[Payload]:
    """The frames of one."""
    return encode(Unroll(1, 0, seq, 0, 0, 0, 1, 0), *parts)


class Way:
    """One direction of a line."""

    def __init__(self, bytes_s: float, latency_s: float) -> None:
        self.bytes_s = bytes_s
        self.latency_s = latency_s
        self.carried = 0
        self._free_at = 0.0

    def arrival(self, nbytes: int, now: float) -> float:
        """When what is sent now has arrived."""
        self._free_at = max(self._free_at, now) + nbytes / self.bytes_s
        self.carried += nbytes
        return self._free_at + self.latency_s


class World:
    """Time, and what arrives when."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), what))

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, what = heapq.heappop(self._events)
            what()
        self.now = until


class End:
    """One end of a connection: what it sends goes `out`, and arrives at the `other` end."""

    other: "End"

    def __init__(self, world: World, out: Way, lease_s: float) -> None:
        self.world = world
        self.out = out
        self.bulk = BulkSender(lease_s)
        self.pieces = Reassembly()
        self.took: list[tuple[Message, bytes]] = []  # whole messages, in order
        self.bytes = 0  # of their buffers
        self.heard: list[float] = []  # when anything arrived
        self.beat_s = 0.0  # the longest that a beat of the other end took
        self.refill: Callable[[], None] = lambda: None  # called when there may be room
        self.cut = 0  # how often the connection broke
        self.admits: Callable[[Message], bool] = lambda _message: True

    def put(self, key: Hashable, frames: Sequence[Payload]) -> None:
        self.bulk.submit(key, frames, self.send, self.world.now)

    def send(self, frames: Sequence[Payload]) -> bool:
        plain = [bytes(frame) for frame in frames]  # type: ignore[arg-type]
        cut = self.cut
        when = self.out.arrival(sum(map(len, plain)) + _OVERHEAD, self.world.now)
        self.world.at(when, lambda: self.other.hear(plain) if cut == self.cut else None)
        return True

    def beat(self, every_s: float) -> None:
        """Says a beat now, and so on."""
        began, cut = self.world.now, self.cut

        def arrives() -> None:
            if cut == self.cut:
                self.other.heard.append(self.world.now)
                self.other.beat_s = max(self.other.beat_s, self.world.now - began)

        self.world.at(self.out.arrival(100, began), arrives)
        self.bulk.beat(self.send, began)
        self.world.at(began + every_s, lambda: self.beat(every_s))

    def hear(self, frames: Sequence[bytes]) -> None:
        now = self.world.now
        self.heard.append(now)
        message, buffers = decode(frames)
        if not self.admits(message):
            return
        match message:
            case Open():
                self.pieces.begin(message, opened(message, buffers))
            case Piece():
                whole = self.pieces.add(message, buffers)
                if whole is not None:
                    self._take(*whole)
            case Mark():
                self.send(encode(self.pieces.answer(message, now)))
            case Reached():
                self.bulk.reached(message, now)
                self.bulk.flush(self.send, now)
                self.refill()
            case _:
                self._take(message, buffers)

    def _take(self, message: Message, buffers: Sequence[Payload]) -> None:
        body = b"".join(bytes(buffer) for buffer in buffers)  # type: ignore[arg-type]
        self.took.append((message, body))
        self.bytes += len(body)

    def silence(self) -> float:
        """The longest time in which nothing arrived."""
        moments = deque([0.0, *self.heard, self.world.now])
        return max(b - a for a, b in itertools.pairwise(moments))


def connect(
    world: World, up: Way, down: Way, *, lease_s: float = 10.0, beat_s: float = 1.0
) -> tuple[End, End]:
    """A peer and the broker; both beat."""
    peer, broker = End(world, up, lease_s), End(world, down, lease_s)
    peer.other, broker.other = broker, peer
    peer.beat(beat_s)
    broker.beat(beat_s)
    return peer, broker


def saturate(end: End, size: int, *, ahead: int = 2) -> None:
    """There is always another message of that size to send."""
    body = bytes(size)
    numbers = itertools.count()

    def refill() -> None:
        while len(end.bulk) < ahead:
            seq = next(numbers)
            end.put(seq, unroll(seq, seq.to_bytes(8, "big"), body))

    end.refill = refill
    refill()


def reconnect(peer: End, broker: End, lease_s: float = 10.0) -> None:
    """What is under way both ways is lost; both begin with an empty line."""
    for end in (peer, broker):
        end.cut += 1
        end.bulk = BulkSender(lease_s)
