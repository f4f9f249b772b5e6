"""Sends unrolls and weights on one line, one after another, in pieces where they are large for the
line, and never so much at once that control messages sent meanwhile would wait.

    put -> waits -> goes out whole, or Open Piece Piece .. with a Mark now and then
                      ^                                         |
                      +-- Reached: room again, and how much ----+
                          of the opened one is there

Pure but for `send`, which takes frames and says whether they are on their way. A new connection
begins empty: what was lost with the old one is known by the beat, is put again, and goes on where
its pieces ended.
"""

import secrets
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import xxhash

from headrace.broker.protocol.messages import (
    MAX_BUFFERS,
    Mark,
    Open,
    Payload,
    Piece,
    Reached,
    encode,
)
from headrace.broker.transport.bulk.congestion_window import CongestionWindow

Send = Callable[[Sequence[Payload]], bool]


@dataclass(slots=True, eq=False)
class _Item:
    """Holds one message that waits."""

    key: Hashable
    frames: Sequence[Payload]
    nbytes: int  # of all frames
    opened: bool = False  # it goes in pieces, and the other end was told
    at: int = 0  # bytes of its buffers that went out
    parts: list[memoryview] = field(default_factory=list)  # its buffers, once it is opened
    size: int = 0  # of those
    digest: int = 0  # of those; 0 = not computed yet


@dataclass(frozen=True, slots=True)
class _Mark:
    """Holds one mark that was not answered yet."""

    number: int
    sent: int  # bytes that had gone out on this connection
    under_way: int  # of those, what had not been reached
    when: float
    short: bool  # something had to wait, or to be cut, since the mark before
    turn: int
    item: _Item | None  # what stood open
    at: int


class BulkSender:
    """Sends the bulk of one connection in one direction. Its owner calls `flush` when there may be
    room: after `put`, `reached`, and at every beat. `submit` does both for one message."""

    def __init__(self, lease_s: float) -> None:
        self.window = CongestionWindow(lease_s)
        self._waiting: dict[Hashable, _Item] = {}  # the first may be under way in pieces
        self._sent = 0  # bytes that ever went out
        self._reached = 0  # of those, the other end has read
        self._marked = 0  # of those, stand before a mark
        self._marks: deque[_Mark] = deque()
        self._short = False  # since the last mark something had to wait, or to be cut
        self._turn = 0  # grows when the position or the window falls: older marks tell nothing
        self._answers = 0  # marks answered since the last beat
        self._nearest_us: int | None = None  # least that an answer took to come back, by two clocks

    def __len__(self) -> int:
        """Counts the messages that are not, or not wholly, on their way."""
        return len(self._waiting)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._waiting

    def submit(self, key: Hashable, frames: Sequence[Payload], send: Send, now: float) -> None:
        """Sends what there is room for, with this message as the last in line. Most are small for
        their line, and nothing waits: those go out at once."""
        nbytes = sum(map(len, frames))
        if self._waiting or nbytes > self.window.piece:
            self.put(key, frames)
            self.flush(send, now)
            return
        if not self._send_whole(frames, nbytes, send):
            self.put(key, frames)
        if self._sent - self._marked >= self.window.piece or self._short:
            self._mark(send, now)

    def submit_joined(
        self,
        joined: Sequence[Payload],
        messages: Sequence[tuple[Hashable, Sequence[Payload]]],
        send: Send,
        now: float,
    ) -> bool:
        """Sends small messages joined to one, if it goes out at once; False = each of them is the
        last in line."""
        nbytes = sum(map(len, joined))
        if (
            not self._waiting
            and nbytes <= self.window.piece
            and self._send_whole(joined, nbytes, send)
        ):
            if self._sent - self._marked >= self.window.piece:
                self._mark(send, now)
            return True
        for key, frames in messages:
            self.put(key, frames)
        self.flush(send, now)
        return False

    def put(self, key: Hashable, frames: Sequence[Payload]) -> None:
        """Appends a message to the queue, unless it waits there already."""
        if key not in self._waiting:
            self._waiting[key] = _Item(key, frames, sum(map(len, frames)))

    def drop(self, key: Hashable) -> None:
        """Removes a message that is not needed any more."""
        self._waiting.pop(key, None)

    def flush(self, send: Send, now: float) -> None:
        """Sends what there is room for."""
        while self._waiting:
            item = next(iter(self._waiting.values()))
            if not item.opened and item.nbytes <= self.window.piece:
                if not self._send_whole(item.frames, item.nbytes, send):
                    break
                del self._waiting[item.key]
            elif not self._flush_piece(item, send):
                break
            if self._sent - self._marked >= self.window.piece:
                self._mark(send, now)
        if self._short:
            self._mark(send, now)

    def beat(self, send: Send, now: float) -> None:
        """Repeats the last mark if none was answered since the last beat, and flushes: the mark, or
        its answer, may have been dropped by the other end's rate limit."""
        if self._marks and not self._answers:
            last = self._marks[-1]
            send(encode(Mark(last.number)))
        self._answers = 0
        self.flush(send, now)

    def reached(self, message: Reached, now: float) -> None:
        """Notes that the other end has read as far as that mark."""
        if all(mark.number != message.number for mark in self._marks):
            return  # of the connection before, or answered
        while (mark := self._marks.popleft()).number != message.number:
            pass
        self._answers += 1
        # The answer may have waited behind bulk of the other direction, which is not for us to make
        # less. How long, its two moments tell: the least that it ever took is the line itself.
        back_us = round(now * 1e6) - message.clock_us
        if self._nearest_us is None or back_us < self._nearest_us:
            self._nearest_us = back_us
        back_s = (back_us - self._nearest_us) / 1e6
        delay_s = now - mark.when - back_s
        fresh = mark.turn == self._turn
        nbytes, self._reached = mark.sent - self._reached, mark.sent
        if fresh and self.window.reached(
            nbytes=nbytes,
            under_way=mark.under_way,
            delay_s=delay_s,
            back_s=back_s,
            short=mark.short,
        ):
            self._turn += 1
        item = mark.item
        if fresh and item is not None and self._waiting.get(item.key) is item:
            self._correct_position(item, mark, message)

    def _send_whole(self, frames: Sequence[Payload], nbytes: int, send: Send) -> bool:
        """Sends a message that is no larger than a piece; False = no room."""
        under_way = self._sent - self._reached
        if under_way and under_way + nbytes > self.window.size:
            self._short = True
            return False
        if not send(frames):
            return False
        self._sent += nbytes
        return True

    def _flush_piece(self, item: _Item, send: Send) -> bool:
        """Sends the next piece of the first in line; False = no room."""
        self._short = True  # a larger window would not have cut it
        if not item.digest:
            item.parts = [memoryview(_plain(part)).cast("B") for part in item.frames[2:]]
            item.size, item.digest = sum(map(len, item.parts)), _digest(item.parts)
        size = min(self.window.piece, item.size - item.at)
        under_way = self._sent - self._reached
        if under_way and under_way + size > self.window.size:
            return False
        if not item.opened:
            sizes = tuple(map(len, item.parts))
            if not send(encode(Open(item.digest, sizes), *item.frames[:2])):
                return False
            item.opened = True
        if not send(encode(Piece(item.at), *_cut(item.parts, item.at, item.at + size))):
            return False
        item.at += size
        self._sent += size
        if item.at == item.size:
            del self._waiting[item.key]
        return True

    def _mark(self, send: Send, now: float) -> None:
        if self._sent == self._marked:
            return  # nothing was sent since the last mark
        item = next(iter(self._waiting.values()), None)
        opened = item if item is not None and item.opened else None
        mark = _Mark(
            secrets.randbits(53),
            self._sent,
            self._sent - self._reached,
            now,
            self._short,
            self._turn,
            opened,
            opened.at if opened is not None else 0,
        )
        if send(encode(Mark(mark.number))):
            self._marks.append(mark)
            self._marked, self._short = self._sent, False

    def _correct_position(self, item: _Item, mark: _Mark, message: Reached) -> None:
        """Continues from the position of the other end: it has pieces from an earlier connection,
        or wants no more, or dropped some at its rate limit."""
        if message.digest != item.digest:
            item.opened, item.at = False, 0
            self._turn += 1
        elif message.have != mark.at:
            item.at = min(message.have, item.size)
            self._turn += 1
        if item.opened and item.at == item.size:
            del self._waiting[item.key]


def _plain(part: Payload) -> memoryview | bytes | bytearray:
    return part if isinstance(part, bytes | bytearray | memoryview) else part.buffer


def _digest(parts: Sequence[memoryview]) -> int:
    """Computes the digest as for an unroll: over the joined buffers. Never 0, which means
    "nothing"."""
    state = xxhash.xxh3_64()
    for part in parts:
        state.update(part)
    return state.intdigest() or 1


def _cut(parts: Sequence[memoryview], lo: int, hi: int) -> list[memoryview]:
    """Returns bytes lo to hi of the joined parts."""
    out, at = [], 0
    for part in parts:
        if at < hi and at + len(part) > lo:
            out.append(part[max(0, lo - at) : hi - at])
        at += len(part)
    assert len(out) <= MAX_BUFFERS
    return out
