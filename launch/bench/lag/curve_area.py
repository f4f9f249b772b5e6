"""Compares learning curves of several lags by the area under them. Pure.

A curve is the return of training episodes over the steps that the weights which played them were
trained on: what lag delays is left out, and what it makes worse remains. An area is the mean of a
curve above what the first weights play.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.launch.one_process.lagged_source import Score

_BINS = 25
_LAST = _BINS // 5  # bins that say what a run came to
_DRAWS = 2000  # of the bootstrap
Floats = NDArray[np.float64]


def curve(scores: Iterable[Score], *, steps: int, start: float) -> Floats:
    """Returns the mean return in each bin of `steps`; a bin in which none ended repeats the one
    before, and the first one `start`."""
    bins: list[list[float]] = [[] for _ in range(_BINS)]
    for score in scores:
        if score.trained < steps:
            bins[score.trained * _BINS // steps].append(score.value)
    points = []
    for found in bins:
        start = sum(found) / len(found) if found else start
        points.append(start)
    return np.array(points)


def compare(runs: Mapping[int, Sequence[Sequence[Score]]], *, steps: int) -> list[dict[str, Any]]:
    """Returns the figures of each lag; the first lag is what the others are compared with.

    A run has failed if what it came to is not half of what the median run of the first lag did.
    """
    first = [
        score.value
        for of_lag in runs.values()
        for run in of_lag
        for score in run
        if not score.trained
    ]
    start = float(np.mean(first)) if first else 0.0
    gains = {
        lag: np.array([curve(run, steps=steps, start=start) for run in of_lag]) - start
        for lag, of_lag in runs.items()
    }
    areas = {lag: gain.mean(axis=1) for lag, gain in gains.items()}
    ends = {lag: gain[:, -_LAST:].mean(axis=1) for lag, gain in gains.items()}
    base = next(iter(runs))
    enough = float(np.median(ends[base])) / 2
    return [
        {
            "lag": lag,
            "area": round(float(areas[lag].mean()), 3),
            "loss": _loss(areas[lag], areas[base], whole=lag == base),
            "end": round(start + float(ends[lag].mean()), 2),
            "worst_end": round(start + float(ends[lag].min()), 2),
            "failed": int((ends[lag] < enough).sum()),
        }
        for lag in runs
    ]


def _loss(areas: Floats, base: Floats, *, whole: bool) -> list[float]:
    """Returns the share of the base's area that is lost, and its 95 % interval by bootstrap over
    the runs of both."""
    if whole:
        return [0.0, 0.0, 0.0]
    rng = np.random.default_rng(0)
    drawn, drawn_base = (rng.choice(own, (_DRAWS, len(own))).mean(axis=1) for own in (areas, base))
    low, high = np.percentile(1 - drawn / drawn_base, [2.5, 97.5])
    return [round(float(x), 3) for x in (1 - areas.mean() / base.mean(), low, high)]
