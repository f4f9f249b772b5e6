"""Counts the bytes that ZeroMQ holds for each connection: sent, and not yet with the kernel. Pure.

ZeroMQ bounds messages, not bytes, and reports neither. But the mailbox can tell when a message has
left. So a message is marked every 64 KiB: once it has left, all that was sent before it has too.
What is not marked yet is below 64 KiB. A mark costs as much as a dozen small messages, so where far
more bulk may wait, as on the way to a learner, one comes every 1 MiB at most.

    bulk    weights and unrolls: a connection is given more only as it takes what it has
    small   everything else: beyond a bound it is dropped, and the next beat says it again
"""

from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Final

# Keeps a fast line busy while a mark comes back (well below a millisecond), and leaves a beat on a
# line of 2 Mbit/s two seconds behind it.
MOST_BULK: Final = 512 << 10
# Of all connections together: beyond it each has one message of bulk under way at a time.
MOST_IN_ALL: Final = 64 << 20
_MOST_SMALL: Final = 256 << 10
_MARK: Final = 64 << 10
_MOST_MARK: Final = 1 << 20
# Connections remembered, oldest forgotten first: only its bytes since the last mark are lost.
_MOST_PIPES: Final = 16_384
_LOOKS: Final = 16


class _Pipe:
    """Counts the unsent bytes of one connection."""

    __slots__ = ("bulk", "loose_bulk", "loose_small", "marks", "small")

    def __init__(self) -> None:
        self.bulk = 0  # bytes sent and not known to have left
        self.small = 0
        self.loose_bulk = 0  # of those: since the last mark
        self.loose_small = 0
        self.marks = 0  # marked messages that have not left


class UnsentBytes:
    """Counts the unsent bytes of all connections of one ROUTER."""

    def __init__(self) -> None:
        self.nbytes = 0  # up to the last mark of every connection
        self.drained: Callable[[bytes], object] = bool  # called when a route has taken some of it
        self._pipes: dict[bytes, _Pipe] = {}

    def has_room(
        self, route: bytes, size: int, *, bulk: bool, most: int = MOST_BULK, in_all: int = 0
    ) -> bool:
        """Says whether `size` more bytes may be sent there. `most` bounds the bulk of this
        connection, `in_all` what may be on its way beside MOST_IN_ALL. Where nothing waits there is
        always room; where there is no room a mark is under way, so that `drained` will be
        called."""
        pipe = self._pipes.get(route)
        if pipe is None:
            return True
        if not bulk:
            return pipe.small < _MARK or pipe.small + size <= _MOST_SMALL
        return pipe.bulk < _mark(most) or (
            pipe.bulk + size <= most and self.nbytes + size <= in_all + MOST_IN_ALL
        )

    def count(
        self, route: bytes, size: int, *, bulk: bool, most: int = MOST_BULK
    ) -> Callable[[], None] | None:
        """Counts a message that is about to be sent, `most` as above. When it is time for a mark it
        returns what is to be called once the message has left, or was not sent after all."""
        pipe = self._pipes.get(route) or self._open(route)
        if bulk:
            pipe.bulk += size
            pipe.loose_bulk += size
        else:
            pipe.small += size
            pipe.loose_small += size
        if pipe.loose_bulk + pipe.loose_small < (_mark(most) if bulk else _MARK):
            return None
        left = partial(self._left, route, pipe, pipe.loose_bulk, pipe.loose_small)
        pipe.marks += 1
        self.nbytes += pipe.loose_bulk + pipe.loose_small
        pipe.loose_bulk = pipe.loose_small = 0
        return left

    def _left(self, route: bytes, pipe: _Pipe, bulk: int, small: int) -> None:
        pipe.marks -= 1
        pipe.bulk -= bulk
        pipe.small -= small
        self.nbytes -= bulk + small
        self.drained(route)

    def _open(self, route: bytes) -> _Pipe:
        if len(self._pipes) >= _MOST_PIPES:
            for first in list(islice(self._pipes, _LOOKS)):
                forgotten = self._pipes.pop(first)
                if not forgotten.marks:
                    break
                self._pipes[first] = forgotten  # it goes to the end: its bytes are still here
        pipe = self._pipes[route] = _Pipe()
        return pipe


def _mark(most: int) -> int:
    """Returns how many bytes of bulk lie between marks: an eighth of what may wait, at most 1
    MiB."""
    return min(most * _MARK // MOST_BULK, _MOST_MARK)
