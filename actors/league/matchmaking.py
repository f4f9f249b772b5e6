"""Chooses whom the policy meets next. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.actors.config import Pick

# Games that every record begins with, half of them won: nobody is judged by a few.
_PRIOR = 2.0
# What a game still counts for after the next one.
_FADES = 0.99


@dataclass(slots=True)
class Record:
    """Counts the policy's games with one other, who may have been met by weights of long ago: the
    newer ones count more."""

    games: float = 0.0
    won: float = 0.0  # a draw is half of a game won

    def add(self, won: float) -> None:
        """Counts a game; those before it count a little less from now on."""
        self.games = self.games * _FADES + 1.0
        self.won = self.won * _FADES + won

    @property
    def share(self) -> float:
        """Returns the share of games that the policy wins."""
        return (self.won + _PRIOR / 2) / (self.games + _PRIOR)


def chances(pick: Pick, records: Sequence[Record]) -> NDArray[np.float64]:
    """Returns how likely each is to be met next; the newest comes last. prioritised: by the square
    of the share of games that the policy loses."""
    count = len(records)
    if pick == "uniform":
        weights = np.ones(count)
    elif pick == "newest":
        weights = np.eye(count)[-1]
    else:
        weights = np.array([(1.0 - record.share) ** 2 for record in records])
    chances: NDArray[np.float64] = weights / weights.sum()
    return chances
