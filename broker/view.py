"""The run's numbers for whoever watches, made at most a few times a second however many ask."""

from typing import Any, Final

from broker import introduction
from broker.blobs import Fetch
from broker.ledger import Ledger
from broker.roster import Roster

# It takes a look at every peer: no sooner again than after so many seconds.
_EVERY_S: Final = 0.1
# Learners and evaluators that are shown.
_MOST_SHOWN: Final = 64


class View:
    """One broker's."""

    def __init__(self, ledger: Ledger, roster: Roster, weights: Fetch) -> None:
        self._ledger = ledger
        self._roster = roster
        self._weights = weights
        self._packed = b""
        self._until = float("-inf")  # the packed one is fresh before

    def packed(self, now: float) -> bytes:
        """For the wire."""
        if now >= self._until:
            self._packed, self._until = introduction.pack(self.status()), now + _EVERY_S
        return self._packed

    def status(self) -> dict[str, Any]:
        book, roster = self._ledger.book, self._roster
        return {
            "run": roster.run,
            "version": book.credit.version,
            "weights": self._weights.version,
            "queued": book.entries - len(book.leases),
            "leased": len(book.leases),
            "running": book.credit.running,
            "received": book.received,
            "outcomes": {o.name.lower(): n for o, n in book.outcomes.items()},
            "duplicates": book.copies,
            "actors": {"behind": roster.behind(self._weights.version), **roster.sums()},
            "learners": [peer.stats for peer in roster.of("learner")[:_MOST_SHOWN]],
            "evaluators": [peer.stats for peer in roster.of("evaluator")[:_MOST_SHOWN]],
            "over": self._ledger.over,
        }
