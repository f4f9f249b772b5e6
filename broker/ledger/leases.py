"""Learner sessions and their leases: which rank holds which unroll. Pure."""

import sys
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import chain

from headrace.broker.ledger.records import Entry, Session

# A tag this far above ours is not reached by counting, so it is not a reason to skip ahead: after a
# few such jumps no tag would fit a message.
_NEAR = 1 << 32


class Leases:
    """Sessions by rank; a lease belongs to one session and ends with it."""

    def __init__(self, *, first_tag: int) -> None:
        self.sessions: dict[int, Session] = {}  # by rank
        self._by_inc: dict[int, Session] = {}
        # Another start for every broker incarnation: a late DONE for a lease of the one before
        # must not settle one of ours.
        self._next_tag = first_tag

    def __len__(self) -> int:
        return sum(len(session.leases) for session in list(self.sessions.values()))

    def session(self, inc: int) -> Session | None:
        return self._by_inc.get(inc)

    def join(self, session: Session) -> None:
        self.sessions[session.rank] = self._by_inc[session.inc] = session

    def leave(self, session: Session) -> None:
        del self.sessions[session.rank], self._by_inc[session.inc]

    def rivals(self, inc: int, *, group: int, rank: int) -> list[Session]:
        """Returns the ranks of another learner, and another session that has this rank."""
        others = [s for s in self.sessions.values() if s.inc != inc]
        return [s for s in others if s.group != group or s.rank == rank]

    def most_room(self, most: int) -> Session | None:
        """Returns the rank with the most free places that does not hold its share of `most` yet.

        Every rank needs the same share of every batch. One that took more, while another was away,
        would hold the last unrolls that pacing allows, and all ranks would wait for each other for
        ever.
        """
        hungry = [
            s for s in self.sessions.values() if s.want > s.given and len(s.leases) * s.world < most
        ]
        return max(hungry, key=lambda s: (s.want - s.given, -s.rank), default=None)

    def lease(self, session: Session, entry: Entry, tag: int | None = None) -> None:
        """Gives a session a new lease, or one that a learner says it held before our restart."""
        if tag is None:
            tag = self._next_tag
            self._next_tag += 1
            session.given += 1
        entry.tag, entry.session = tag, session.inc
        entry.attempt += 1
        session.leases[tag] = entry

    def reserve_tags(self, tags: Sequence[int]) -> None:
        """Skips these tags, which a learner holds already: no new lease may get one of them."""
        far = self._next_tag + _NEAR
        self._next_tag = max([self._next_tag, *(tag + 1 for tag in tags if tag < far)])

    def release(self, entry: Entry) -> None:
        session = self.session(entry.session)
        if session is not None:
            session.leases.pop(entry.tag, None)
        entry.tag, entry.session = -1, 0

    def of(self, inc: int, tags: Sequence[tuple[int, int]]) -> list[Entry]:
        """Returns the entries leased to this session: a late DONE of a fenced one finds none."""
        session = self.session(inc)
        if session is None:
            return []
        # Each once, even if ranges overlap, and with no more work than there are leases.
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
    """Holds half-open ranges of tags, given in any order; tells whether a tag is among them."""

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
        """Returns the number of tags, capped at what len() can return."""
        return min(sum(self._highs) - sum(self._lows), sys.maxsize)

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(map(range, self._lows, self._highs))

    def __contains__(self, tag: int) -> bool:
        at = bisect_right(self._lows, tag) - 1
        return at >= 0 and tag < self._highs[at]
