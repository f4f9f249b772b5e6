"""The ages of trained steps: versions between the weights that acted and those that train."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# Steps that stand for those of one unroll, from its first to its last. Which version acted each
# step is not known, only the oldest and the newest: between them it is taken to rise evenly.
_POINTS = 32
# Unrolls that are counted together.
_MOST_WAITING = 1024
# Larger ages count as this.
_LARGEST = 10_000


class UnrollAge(NamedTuple):
    """Holds how many versions ago an unroll was played."""

    first: int  # its first step
    last: int
    steps: int  # live ones


class StepAges:
    """Counts steps by age, since it was cleared."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._counts: NDArray[np.float64] = np.zeros(_LARGEST + 1)  # by age; in _POINTS of a step
        self._waiting: list[UnrollAge] = []  # not counted yet: many at once cost as much as one

    def add(self, unrolls: Sequence[UnrollAge]) -> None:
        """Takes in the steps of unrolls."""
        self._waiting.extend(unrolls)
        if len(self._waiting) >= _MOST_WAITING:
            self._count()

    def _count(self) -> None:
        if self._waiting:
            first, last = np.clip([one[:2] for one in self._waiting], 0, _LARGEST).T
            ages = np.rint(np.linspace(first, last, _POINTS)).astype(np.int64).ravel()
            steps = np.tile([float(one.steps) for one in self._waiting], _POINTS)
            self._counts += np.bincount(ages, steps, minlength=_LARGEST + 1)
            self._waiting.clear()

    def figures(self) -> dict[str, float]:
        """Returns the mean and the 99th percentile; {} when nothing was counted."""
        self._count()
        below = np.cumsum(self._counts)
        total = float(below[-1])
        if not total:
            return {}
        mean = float(np.dot(self._counts, np.arange(_LARGEST + 1))) / total
        return {"lag_mean": mean, "lag_p99": float(np.searchsorted(below, 0.99 * total))}
