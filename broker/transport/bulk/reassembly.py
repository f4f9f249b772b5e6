"""Joins the pieces of a large message until it is whole: the receiving end of bulk. Pure.

One message at a time: the next Open ends what was not finished. The state outlives a broken
connection, and the same buffers, opened again, go on where they ended.
"""

from collections.abc import Sequence

from headrace.broker.protocol.messages import (
    Buffer,
    Malformed,
    Mark,
    Message,
    Open,
    Piece,
    Reached,
    decode,
)


def opened(message: Open, head: Sequence[Buffer]) -> Message:
    """Returns the message whose buffers will follow; raises Malformed when there is none."""
    if len(head) != 2:
        raise Malformed("no message was opened")
    inner, _ = decode([*head, *(b"" for _ in message.sizes)])
    return inner


class Reassembly:
    """Collects the pieces of one peer's messages."""

    def __init__(self) -> None:
        self.message: Message | None = None  # what stands open; None = nothing does
        self.size = 0  # of its buffers, in memory from the moment it is opened
        self._digest = 0  # of what was opened last; 0 = nothing was
        self._have = 0  # bytes from the first on
        self._total = 0  # of what was opened last
        self._buffers: list[bytearray] = []

    def begin(self, message: Open, inner: Message) -> None:
        """Makes room for the message, unless the same one stands open."""
        same = self.message is not None and message.digest == self._digest
        if not same or [len(buffer) for buffer in self._buffers] != list(message.sizes):
            self.refuse(message)
            self._have = 0
            self._buffers = [bytearray(size) for size in message.sizes]
            self.size = self._total
        self.message = inner

    def refuse(self, message: Open) -> None:
        """Answers for a message that is not wanted as if all of it were here."""
        self.forget()
        self._digest = message.digest
        self._have = self._total = sum(message.sizes)

    def forget(self) -> None:
        """Drops the open message, and answers as if all of it were here."""
        self.message, self._buffers, self.size = None, [], 0
        self._have = self._total

    def add(self, piece: Piece, parts: Sequence[Buffer]) -> tuple[Message, list[bytearray]] | None:
        """Returns the message with its buffers when this piece completes it. Bytes that are here
        already are skipped: a sender that opens it again may have sent all of it before it hears
        how far we are. A piece behind a gap is ignored."""
        end = piece.at + sum(map(len, parts))
        here = self._have - piece.at  # bytes of it
        if self.message is None or here < 0 or not self._have < end <= self._total:
            return None
        for part in parts:
            view = memoryview(part).cast("B")
            self._store(view[here:])
            here = max(0, here - len(view))
        if self._have < self._total:
            return None
        whole = self.message, self._buffers
        self.forget()
        return whole

    def answer(self, mark: Mark, now: float) -> Reached:
        """Returns the answer to a mark."""
        return Reached(mark.number, max(0, round(now * 1e6)), self._digest, self._have)

    def _store(self, part: memoryview) -> None:
        lo, at = self._have, 0
        for buffer in self._buffers:
            hi = at + len(buffer)
            if at <= lo < hi and len(part):
                size = min(len(part), hi - lo)
                buffer[lo - at : lo - at + size] = part[:size]
                part, lo = part[size:], lo + size
            at = hi
        self._have = lo
