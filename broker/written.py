"""The broker's book, written down: how every unroll ended here, before anybody hears of it."""

from typing import Any

from broker.book import Book
from broker.journal import Journal
from broker.records import Effects, Entry
from broker.wire import Outcome


class WrittenBook(Book):
    """A Book with a journal. What ends is gathered and written once a pump."""

    def __init__(self, journal: Journal, **options: Any) -> None:
        super().__init__(**options)
        self._journal = journal
        # Seqs that ended since the last pump, by (incarnation, stream, outcome).
        self._ends: dict[tuple[int, int, Outcome], list[int]] = {}
        journal.window((self.credit.max_lag + 1) * self.credit.batch)

    def settle(self, entry: Entry, outcome: Outcome, blame: str = "") -> None:
        super().settle(entry, outcome, blame)
        unroll = entry.unroll
        self._ends.setdefault((unroll.inc, unroll.stream, outcome), []).append(unroll.seq)

    def collect(self, effects: Effects) -> None:
        if self._ends:
            self._journal.settled(self._ends)
            self._ends = {}
        super().collect(effects)
