"""Sums up the metrics of one unroll: of its steps, and of the episodes that ended in it."""

import numpy as np
from numpy.typing import NDArray

from headrace.learner.spaces import DEAD, ENDED, LAST, LEAST, MEAN, MOST, STEPS

Numbers = NDArray[np.float64]


class MetricSums:
    """Holds what the steps of an unroll under construction gave, and the running episodes."""

    def __init__(self, *, length: int, envs: int, metrics: int) -> None:
        # By step, [length, envs, metrics]: NaN = not given, infinite = it was no number.
        self.steps = np.full((length, envs, metrics), np.nan)
        self.unusable = np.zeros(metrics, np.int64)  # values of the latest unroll
        self._latest = np.full((envs, metrics), np.nan)  # of the running episode

    def sum_up(self, flags: NDArray[np.uint8], into: Numbers) -> None:
        """Writes the numbers of the unroll, [1, envs, metrics, 6]. `flags` are those of its steps,
        as the environments gave them; what was not played is NaN and without flags."""
        steps = self.steps
        bad = np.isinf(steps)
        self.unusable = bad.sum(axis=(0, 1))
        steps[bad] = np.nan
        given = ~np.isnan(steps)
        count = given.sum(axis=0)
        own = into[0]
        own[:] = 0.0
        own[..., STEPS] = count
        own[..., MEAN] = np.where(given, steps, 0.0).sum(axis=0) / np.maximum(count, 1)
        some = count > 0
        own[..., LEAST] = np.where(some, np.where(given, steps, np.inf).min(axis=0), 0.0)
        own[..., MOST] = np.where(some, np.where(given, steps, -np.inf).max(axis=0), 0.0)
        for column in np.flatnonzero(flags.any(axis=0)).tolist():
            self._end_episodes(column, flags[:, column], own[column])
        quiet = ~flags.any(axis=0)
        self._latest[quiet] = _latest(steps, self._latest)[quiet]

    def _end_episodes(self, column: int, flags: NDArray[np.uint8], own: Numbers) -> None:
        """Writes the last values of one environment's latest episode that ended. One that was lost
        when its environment was made again has none."""
        steps, at = self.steps[:, column], 0
        for t in np.flatnonzero(flags).tolist():
            latest = _latest(steps[at : t + 1], self._latest[column])
            if flags[t] != DEAD:
                there = ~np.isnan(latest)
                own[:, ENDED] = 1 + there
                own[:, LAST] = np.where(there, latest, 0.0)
            self._latest[column], at = np.nan, t + 1
        self._latest[column] = _latest(steps[at:], self._latest[column])


def _latest(steps: Numbers, before: Numbers) -> Numbers:
    """Returns the last number that the steps gave, [n, ..]; `before` where they gave none."""
    if not len(steps):
        return before
    given = ~np.isnan(steps)
    at = len(steps) - 1 - given[::-1].argmax(axis=0)
    found = np.take_along_axis(steps, at[None], axis=0)[0]
    return np.where(given.any(axis=0), found, before)
