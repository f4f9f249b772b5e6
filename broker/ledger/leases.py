"""Who holds which unroll, pure: learner sessions and their leases."""

import sys
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import chain

from headrace.broker.ledger.records import Entry, Session

# A tag so far above ours will not be reached by counting. A higher one is no reason to jump: a few
# such jumps, and no tag would fit a message.
_NEAR = 1 << 32


class Leases:
    """Sessions by rank; a lease belongs to one session and ends with it."""

    def __init__(self, *, first_tag: int) -> None:
        self.sessions: dict[int, Session] = {}
        # Another start for every broker incarnation: a late DONE for a lease of the one before
        # must not settle one of ours.
        self._next_tag = first_tag

    def __len__(self) -> int:
        return sum(len(session.leases) for session in list(self.sessions.values()))

    def session(self, inc: int) -> Session | None:
        return next((s for s in self.sessions.values() if s.inc == inc), None)

    def rivals(self, inc: int, *, group: int, rank: int) -> list[Session]:
        """Ranks of another learner than this one's, and whoever is this rank already."""
        others = [s for s in self.sessions.values() if s.inc != inc]
        return [s for s in others if s.group != group or s.rank == rank]

    def hungriest(self, most: int) -> Session | None:
        """The rank with most free places, which may hold its share of `most`.

        Every rank needs the same share of every batch. One that took more, while another was away,
        would hold the last unrolls that pacing allows, and all would wait for each other for ever.
        """
        hungry = [
            s for s in self.sessions.values() if s.want > s.given and len(s.leases) * s.world < most
        ]
        return max(hungry, key=lambda s: (s.want - s.given, -s.rank), default=None)

    def lease(self, session: Session, entry: Entry, tag: int | None = None) -> None:
        """A new lease, or one that a learner says it holds since before our restart."""
        if tag is None:
            tag = self._next_tag
            self._next_tag += 1
            session.given += 1
        entry.tag, entry.session = tag, session.inc
        entry.attempt += 1
        session.leases[tag] = entry

    def never_again(self, tags: Sequence[int]) -> None:
        """A learner holds something by these tags; no lease of ours may be called so."""
        far = self._next_tag + _NEAR
        self._next_tag = max([self._next_tag, *(tag + 1 for tag in tags if tag < far)])

    def release(self, entry: Entry) -> None:
        session = self.session(entry.session)
        if session is not None:
            session.leases.pop(entry.tag, None)
        entry.tag, entry.session = -1, 0

    def of(self, inc: int, tags: Sequence[tuple[int, int]]) -> list[Entry]:
        """Only what is leased to this very session: a late DONE of a fenced one changes nothing."""
        session = self.session(inc)
        if session is None:
            return []
        # Each once, whatever the ranges say, and no more work than there are leases.
        named, leases = _Tags(tags), session.leases
        if len(named) > len(leases):
            return [leases[tag] for tag in sorted(leases) if tag in named]
        return [leases[tag] for tag in named if tag in leases]

    def lost(self, inc: int, held: Sequence[tuple[int, int]], max_tag: int) -> list[Entry]:
        """Leases up to max_tag that the learner does not hold: lost on the way, in order."""
        session = self.session(inc)
        if session is None:
            return []
        here = _Tags(held)
        return [e for tag, e in session.leases.items() if tag <= max_tag and tag not in here]


class _Tags:
    """Half-open ranges as somebody named them, in any order: is a tag among them?"""

    def __init__(self, ranges: Sequence[tuple[int, int]]) -> None:
        self._lows: list[int] = []
        self._highs: list[int] = []
        for lo, hi in sorted(ranges):
            if self._highs and lo <= self._highs[-1]:
                self._highs[-1] = max(self._highs[-1], hi)
            elif hi > lo:
                self._lows.append(lo)
                self._highs.append(hi)

    def __len__(self) -> int:
        """Or what len can say of it: a range may be wider than any count of ours."""
        return min(sum(self._highs) - sum(self._lows), sys.maxsize)

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(map(range, self._lows, self._highs))

    def __contains__(self, tag: int) -> bool:
        at = bisect_right(self._lows, tag) - 1
        return at >= 0 and tag < self._highs[at]
