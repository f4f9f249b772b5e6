"""The figures by which groups of runs are compared: pure functions of the runs' final returns.

The definitions are those that rliable made usual; a group is one task, its seeds the repetitions.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_RESAMPLES = 2000


def iqm(values: Sequence[float] | Floats) -> float:
    """Returns the mean of the middle half: a quarter of the values, rounded down, is cut at each
    end."""
    cut = len(values) // 4
    return float(np.mean(np.sort(values)[cut : len(values) - cut]))


def improvement(ours: Sequence[float] | Floats, base: Sequence[float] | Floats) -> float:
    """Returns the share of all pairs in which ours is above the base; a tie counts half."""
    left, right = np.asarray(ours)[:, None], np.asarray(base)[None, :]
    return float(np.mean((left > right) + 0.5 * (left == right)))


def mean(values: Floats) -> Floats:
    """Returns the mean over the first axis, the runs."""
    return np.asarray(values.mean(axis=0))


def bootstrap(
    figure: Callable[..., Floats | float], *groups: Floats
) -> tuple[Floats, Floats] | None:
    """Returns the 95 % percentile interval of a figure of the groups, each of which is resampled by
    itself along its first axis, the runs; None = one run alone has none. The same runs give the
    same interval."""
    if min(map(len, groups)) < 2:
        return None
    rng = np.random.default_rng(0)
    drawn = [
        figure(*(values[rng.integers(len(values), size=len(values))] for values in groups))
        for _ in range(_RESAMPLES)
    ]
    low, high = np.percentile(np.stack(drawn), (2.5, 97.5), axis=0)
    return low, high


def median_steps(steps: Sequence[float | None]) -> float | None:
    """Returns the median steps to the goal, where a run that missed it counts as endless; None =
    half of the runs or more missed it."""
    found = float(np.median([np.inf if at is None else at for at in steps]))
    return found if np.isfinite(found) else None


def shared_curve(
    curves: Sequence[tuple[Sequence[float], Sequence[float]]],
) -> tuple[Floats, Floats] | None:
    """Returns steps that all curves reach, and each curve's returns there (one row a run); None =
    they have no steps in common."""
    low, high = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    if low > high:
        return None
    steps = np.linspace(low, high, 200)
    return steps, np.stack([np.interp(steps, x, y) for x, y in curves])
