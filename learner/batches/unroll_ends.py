"""Tells other learner ranks what ended in an unroll: episodes, and metrics."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.broker.protocol.messages import Deliver
from headrace.learner.spaces import (
    ENDED,
    LARGEST_METRIC,
    LAST,
    LEAST,
    MEAN,
    MOST,
    POLICY,
    STEPS,
    TERMINATED,
    TRUNCATED,
)

# Last values of one episode, by metric; None = the episode never gave it.
Lasts = tuple[float | None, ...]


class StepSums(NamedTuple):
    """Holds what the steps of one unroll, or of several, gave of one metric."""

    steps: float  # how many gave it
    total: float
    least: float
    most: float


class UnrollMetrics(NamedTuple):
    """Holds the metrics of one unroll."""

    episodes: tuple[tuple[int, Lasts], ...] = ()  # (column, last values) of the latest that ended
    steps: tuple[StepSums, ...] = ()  # by metric


class EpisodeEnds(NamedTuple):
    """Holds one unroll of a stream, and the episodes that are reported with it."""

    inc: int
    stream: int
    envs: int
    length: int  # live steps of each environment, on average
    episodes: tuple[tuple[int, float, int], ...]  # (column, return, length), the latest last
    metrics: UnrollMetrics | None = None  # None = none are asked for
    players: tuple[int, ...] = ()  # of a population: who played each of the episodes; -1 = unknown


def ends_of(
    messages: Sequence[Deliver], arrays: Mapping[str, NDArray[Any]], envs: int
) -> list[EpisodeEnds]:
    """Returns the episodes that ended in each unroll of a batch, in the same order."""
    metrics = metrics_of(arrays.get("metrics"), envs)
    columns = (slice(at, at + envs) for at in itertools.count(0, envs))
    return [
        EpisodeEnds(
            one.inc,
            one.stream,
            envs,
            math.ceil(one.steps / envs),
            one.episodes,
            told,
            players_of(arrays, own, one.episodes),
        )
        for one, told, own in zip(messages, metrics, columns, strict=False)
    ]


def players_of(
    arrays: Mapping[str, NDArray[Any]], columns: slice, episodes: Sequence[tuple[int, float, int]]
) -> tuple[int, ...]:
    """Returns which policy of a population played each episode of an unroll in these columns; none
    where there is no population."""
    if (plays := arrays.get(f"obs.{POLICY}")) is None:
        return ()
    plays, flags = plays[:-1, columns], arrays["flags"][:, columns]
    found, later = [-1] * len(episodes), [0] * plays.shape[1]
    for at in reversed(range(len(episodes))):
        column = episodes[at][0]
        ends = np.flatnonzero(flags[:, column] & (TERMINATED | TRUNCATED))
        later[column] += 1
        if later[column] <= len(ends):
            found[at] = int(plays[ends[-later[column]], column])
    return tuple(found)


def metrics_of(field: NDArray[Any] | None, envs: int) -> Iterator[UnrollMetrics | None]:
    """Yields the metrics of each unroll of a batch, whose `metrics` field is [1, columns, metrics,
    6]; None for ever where it has none."""
    if field is None:
        return itertools.repeat(None)
    return (_of_unroll(field[0, at : at + envs]) for at in range(0, field.shape[1], envs))


def _of_unroll(array: NDArray[Any]) -> UnrollMetrics:
    ended = np.flatnonzero((array[..., ENDED] > 0).all(axis=-1))
    episodes = tuple(
        (column, tuple(float(one[LAST]) if one[ENDED] == 2 else None for one in array[column]))
        for column in ended.tolist()
    )
    return UnrollMetrics(episodes, tuple(map(_sums, array.swapaxes(0, 1))))


def _sums(one: NDArray[Any]) -> StepSums:
    """Adds up one metric, [envs, 6]."""
    there = one[one[:, STEPS] > 0]
    if not len(there):
        return StepSums(0.0, 0.0, 0.0, 0.0)
    steps = there[:, STEPS]
    return StepSums(
        float(steps.sum()),
        float(np.dot(steps, there[:, MEAN])),
        float(there[:, LEAST].min()),
        float(there[:, MOST].max()),
    )


def false_metrics(array: NDArray[Any], length: int) -> str:
    """Says what no honest sampler of unrolls of this length sends; "" = nothing."""
    if not (np.abs(array) <= LARGEST_METRIC).all():  # so no NaN passes
        return "a metric that is not finite, or too large"
    ended, steps = array[..., ENDED], array[..., STEPS]
    if not np.isin(ended, (0, 1, 2)).all() or ((ended > 0) != (ended[..., :1] > 0)).any():
        return "metrics of an episode that half ended"
    if (steps != np.floor(steps)).any() or (steps < 0).any() or (steps > length).any():
        return f"a metric of a number of steps that is not 0 to {length}"
    return ""
