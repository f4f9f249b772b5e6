"""The version the run is at, and how far each peer is believed about it. Pure.

Samplers wait for the weights of the version that we believe, and versions never fall: one lie that
is far too high would stop the run. So

    rank 0 at HELLO    is believed: it may have come from any checkpoint, and we may be new
    rank 0 after it    as far as what it was given can have brought it; if other brokers give it
                       unrolls too, wholly
    other ranks        as far as the DONEs say that arrived: they publish no weights to wait for
    samplers           only when we and the learner lost our memories, and then most of them
"""

import sys
from collections.abc import Iterable

from headrace.broker.ledger.pacing import Credit
from headrace.broker.ledger.records import Session

# Versions that rank 0 may be ahead of what the DONEs account for that arrived: some get lost.
_AHEAD = 64


class Versions:
    """Decides which version the run is at; nothing else changes the credit's version."""

    def __init__(self, credit: Credit, *, alone: bool = True) -> None:
        self.credit = credit
        self.alone = alone  # the run has no other broker
        self.rolled_back = 0  # unrolls trained, then undone by a learner back from a checkpoint
        self.first_rank = 0  # incarnation of the latest rank 0; 0 = none came: we know no version

    def hello(
        self,
        session: Session,
        version: int,
        others: Iterable[Session],
        *,
        acted: int,
        published: int,
    ) -> int:
        """Returns the version that a rank which says HELLO must continue at.

        `acted`: what the samplers say they act with; `published`: the newest weights that are here.
        """
        if session.rank == 0:
            self._begin(session.inc, version, acted)
            for other in others:  # before rank 0 came they could say what they liked
                other.began = min(other.began, self.credit.version)
        told = max(self.credit.version, published, 0 if self.first_rank else version)
        session.began, session.trained = told, 0
        return told

    def _begin(self, inc: int, version: int, acted: int) -> None:
        """Starts counting at the learner's version, but above any that we have seen."""
        credit = self.credit
        if not self.first_rank and version < acted:
            credit.version = acted + 1  # samplers have weights that they call newer
        elif inc != self.first_rank and version < credit.version:
            self.rolled_back += (credit.version - version) * credit.batch
            credit.version += 1
        self.first_rank = inc
        credit.version = max(credit.version, version)

    def heard(self, session: Session, version: int) -> None:
        """Notes a version that any rank says: all ranks step together, and what one of them trained
        must count by the version from the moment its DONE takes it off the ledger."""
        if version > self.credit.version and self.first_rank:
            newest = min(version, self.newest_of(session))
            self.credit.version = max(self.credit.version, newest)

    def newest_of(self, session: Session) -> int:
        """Returns the newest version that a rank can have trained."""
        if not self.alone:
            return session.began if session.rank else sys.maxsize
        unrolls, ahead = session.trained, 0
        if session.rank == 0:
            unrolls, ahead = unrolls + len(session.leases), _AHEAD
        steps = -(-unrolls * session.world // self.credit.batch)
        return session.began + steps + ahead
