"""Who holds which unroll, pure: learner sessions and their leases."""

from collections.abc import Sequence

from broker.records import Entry, Session

# A forged range may not hold the loop for long.
_MOST_TAGS = 65536


class Leases:
    """Sessions by rank; a lease belongs to one session and ends with it."""

    def __init__(self, *, first_tag: int) -> None:
        self.sessions: dict[int, Session] = {}
        # Another start for every broker incarnation: a late DONE for a lease of the one before
        # must not settle one of ours.
        self._next_tag = first_tag

    def __len__(self) -> int:
        return sum(len(session.leases) for session in self.sessions.values())

    def session(self, inc: int) -> Session | None:
        return next((s for s in self.sessions.values() if s.inc == inc), None)

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
            session.given += 1
        self.never_again(tag)
        entry.tag, entry.session = tag, session.inc
        entry.attempt += 1
        session.leases[tag] = entry

    def never_again(self, tag: int) -> None:
        """A learner holds something by this tag; no lease of ours may be called so."""
        self._next_tag = max(self._next_tag, tag + 1)

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
        wanted = (tag for lo, hi in tags for tag in range(lo, min(hi, lo + _MOST_TAGS)))
        return [session.leases[tag] for tag in wanted if tag in session.leases]

    def lost(self, inc: int, held: Sequence[tuple[int, int]], max_tag: int) -> list[Entry]:
        """Leases up to max_tag that the learner does not hold: lost on the way, in order."""
        session = self.session(inc)
        if session is None:
            return []
        here = {tag for lo, hi in held for tag in range(lo, min(hi, lo + _MOST_TAGS))}
        return [e for tag, e in session.leases.items() if tag <= max_tag and tag not in here]
