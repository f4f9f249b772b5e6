"""Keeps the streams together: none goes far ahead of the slowest. Pure.

A stream that just joined takes part from its first credit on. Those that are late after that, or
overdue, are neither waited for nor held back: pacing has its own bounds for them. So a sampler that
is gone holds up nobody, and one that hangs does until it is overdue.
"""

from collections import Counter
from typing import Final

from headrace.broker.ledger.records import Stream

# Unrolls that a stream may be ahead of the slowest, those that it runs included.
_MOST_AHEAD: Final = 4


class Balance:
    """Counts the unrolls that each stream supplied, and says which streams must rest."""

    def __init__(self, *, on: bool) -> None:
        self.on = on  # else no stream ever rests
        self._members: Counter[int] = Counter()  # streams that are compared, by unrolls supplied
        self._resting: dict[Stream, None] = {}  # in the order they began to
        self._since = 0  # what the slowest had supplied when the first of them began to rest

    @property
    def resting(self) -> bool:
        """Tells whether a stream that could have credit waits for slower ones."""
        return bool(self._resting)

    def take_out(self, stream: Stream) -> None:
        """Forgets the stream while it changes; `put_back` compares it again."""
        if stream.balanced:
            self._members[stream.supplied] -= 1
            if not self._members[stream.supplied]:
                del self._members[stream.supplied]

    def put_back(self, stream: Stream) -> None:
        """Compares the stream with the others. One that was not among them begins beside the
        slowest: it need not make up for what was before."""
        first = stream.arrived == stream.began and stream.running > 0
        waited_for = (first or not stream.late) and not stream.overdue
        was, stream.balanced = stream.balanced, self.on and waited_for
        if stream.balanced:
            if not was:
                stream.supplied = self._slowest()
            self._members[stream.supplied] += 1

    def leave(self, stream: Stream) -> None:
        """Compares the stream no longer; call it after `take_out`."""
        stream.balanced = False

    def must_rest(self, stream: Stream) -> bool:
        """Tells whether the stream is too far ahead for another credit; it is then kept until the
        slowest has moved on."""
        if not stream.balanced:
            return False
        slowest = self._slowest()
        rests = stream.supplied + stream.running >= slowest + _MOST_AHEAD
        if rests:
            self._since = self._since if self._resting else slowest
            self._resting[stream] = None
        return rests

    def rested(self) -> list[Stream]:
        """Returns the streams that rested, once the slowest has moved on."""
        if not self._resting or (self._members and self._slowest() <= self._since):
            return []
        resting, self._resting = self._resting, {}
        return list(resting)

    def _slowest(self) -> int:
        return min(self._members, default=0)
