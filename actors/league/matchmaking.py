"""Chooses whom the policy meets next. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headrace.learner.models import named_code
from headrace.learner.models.named_code import OwnCodeError

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


class Candidate(NamedTuple):
    """Describes one who may be met, to a rule."""

    name: str  # as league.others has it; "" = weights of before
    version: int  # of such weights; -1 = it is one of league.others
    games: float  # against it so far, older ones count less
    won: float  # the share of them that the policy wins


# How likely each is to be met next, in proportion; the newest weights come last.
Rule: TypeAlias = Callable[[Sequence[Candidate]], Sequence[float]]

# prioritised: by the square of the share of games that the policy loses.
_RULES: Final[dict[str, Rule]] = {
    "uniform": lambda league: [1.0] * len(league),
    "newest": lambda league: [0.0] * (len(league) - 1) + [1.0],
    "prioritised": lambda league: [(1.0 - one.won) ** 2 for one in league],
}


def rule(pick: str) -> Rule:
    """Returns the rule of this name, or module:function; OwnCodeError where there is none."""
    return _RULES.get(pick) or named_code.function("league.pick", pick)


def chances(pick: str, weigh: Rule, league: Sequence[Candidate]) -> NDArray[np.float64]:
    """Returns how likely each is to be met next; OwnCodeError if the rule fails, or gives something
    else."""
    try:
        weights = np.asarray(weigh(league), np.float64)
    except Exception as error:
        told = named_code.one_line(error)
        raise OwnCodeError(f'league.pick = "{pick}" failed, mend it: {told}') from error
    total = weights.sum()
    if weights.shape != (len(league),) or not (weights.min() >= 0 and 0 < total < np.inf):
        raise OwnCodeError(
            f'league.pick = "{pick}" gives {weights.tolist()!s:.80}; it must give a number of 0 or'
            f" more for each of {len(league)}, and not only 0"
        )
    found: NDArray[np.float64] = weights / total
    return found
