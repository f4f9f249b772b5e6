"""The mean return of training episodes, in which each environment weighs the same.

Of episodes that run side by side the short ones end first, so a mean over episodes in the order of
their ends has too many short ones, most of all at the start. Ours is over environments, of the
latest episodes of each, and it stands only when every environment has ended one. Three kinds are
not waited for, and none is chosen by how its episodes end: environments that came lately (samplers
may come and go all the time), silent ones (they left, or hang), and endless episodes.
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from headrace.learner.batches.unroll_ends import EpisodeEnds, Lasts

# Training episodes that the mean is over; more where there are more environments: one of each.
LAST = 100
# An environment is new while it has been there for less than this share of the oldest one's time.
_NEW = 0.1
# A stream is silent when its latest unroll is this many of its usual gaps ago.
_SILENT = 20
# Steps after which an episode has no end in sight, if it is this much longer than any other.
_ENDLESS, _TIMES_LONGEST = 100_000, 10
# Environments remembered; beyond, the longest silent are forgotten.
_MOST = 1 << 17
# The mean is recomputed this often while as many episodes end as there are environments.
_LOOKS = 64


class _Environment:
    """Holds the latest episodes of one environment."""

    __slots__ = ("at", "episodes", "metrics")

    def __init__(self, at: int, returns: Iterable[float]) -> None:
        self.at = at  # steps of its stream when it last ended an episode
        # (return, length) of its latest episodes; without a length where it was restored.
        self.episodes = deque[tuple[float, int | None]]((value, None) for value in returns)
        self.metrics: deque[Lasts] | None = None  # of its latest episodes; None = none are told


class _Stream:
    """Holds the environments of one group of one sampler process."""

    __slots__ = ("columns", "heard", "joined", "steps", "unrolls")

    def __init__(self, version: int, columns: list[_Environment]) -> None:
        self.joined = self.heard = version  # of its first and its latest unroll
        self.unrolls = self.steps = 0  # how many came, and steps of each environment in them
        self.columns = columns

    def gap(self) -> float:
        """Returns the versions from one unroll to the next; 0 = only one came."""
        return (self.heard - self.joined) / max(1, self.unrolls - 1)


class MeanReturn:
    """Computes the mean return of all that is trained on, and whether it can be relied on."""

    def __init__(self) -> None:
        self.mean: float | None = None  # None = some environment has yet to end its first episode
        self.whole = False  # the mean is over LAST episodes or more, and nobody is waited for
        self.mean_length: float | None = None  # of the same episodes, in steps
        # By environment: the metrics of its latest episodes, as of the last look.
        self.metrics: list[Sequence[Lasts]] = []
        self.waits = 0  # environments that are waited for
        self.endless = 0  # environments that are left out, for their episodes do not end
        self._longest = 0  # episode, in steps
        self._envs = 0  # remembered
        self._each = LAST  # episodes of each environment that the mean is over
        self._live = 0  # streams, when last looked
        self._ended = 0  # episodes since then
        self.told = 0  # episodes in all
        self._news: list[str] = []  # sentences for the log, each is said once
        self._said: set[str] = set()  # what they were about
        self._streams: dict[tuple[int, int], _Stream] = {}  # the longest silent first

    def add(self, unrolls: Sequence[EpisodeEnds], version: int) -> None:
        """Takes in the unrolls that were trained on; `version` is the outcome."""
        for unroll in unrolls:
            self._add(unroll, version)
        while self._envs > _MOST and len(self._streams) > 1:
            self._envs -= len(self._streams.pop(next(iter(self._streams))).columns)
        if unrolls and self._ended and self._ended >= self._envs // _LOOKS:
            self._ended = 0
            self._recompute(version, usual=self._live / max(1, len(unrolls)))

    def _add(self, unroll: EpisodeEnds, version: int) -> None:
        key = unroll.inc, unroll.stream
        stream = self._streams.pop(key, None)
        if stream is None:
            stream = _Stream(version, [_Environment(0, ()) for _ in range(unroll.envs)])
            self._envs += unroll.envs
            self._live += 1
        self._streams[key] = stream
        stream.heard = version
        stream.unrolls += 1
        stream.steps += unroll.length
        for number, value, length in unroll.episodes:
            column = stream.columns[number]
            column.at = stream.steps
            column.episodes.append((value, length))
            while len(column.episodes) > self._each:
                column.episodes.popleft()
            self._longest = max(self._longest, length)
        for number, lasts in unroll.metrics.episodes if unroll.metrics is not None else ():
            column = stream.columns[number]
            if column.metrics is None:
                column.metrics = deque()
            column.metrics.append(lasts)
            while len(column.metrics) > self._each:
                column.metrics.popleft()
        self._ended += len(unroll.episodes)
        self.told += len(unroll.episodes)

    def _recompute(self, version: int, *, usual: float) -> None:
        """Recomputes the mean. usual: versions between unrolls of a stream, over all of them."""
        live = [
            stream
            for stream in self._streams.values()
            if version - stream.heard <= _SILENT * max(1.0, usual, stream.gap())
        ]
        self._live = len(live)
        oldest = min(stream.joined for stream in live)
        newest = oldest + (1 - _NEW) * (version - oldest)
        patience = max(_ENDLESS, _TIMES_LONGEST * self._longest)
        there = [
            (column, stream.steps - column.at <= patience)
            for stream in live
            if stream.joined <= newest
            for column in stream.columns
        ]
        counted = [column for column, ends in there if ends and column.episodes]
        self.endless = sum(not ends for _, ends in there)
        self.waits = len(there) - self.endless - len(counted)
        self._each = math.ceil(LAST / max(1, len(counted) + self.waits))
        self._remark(len(there), patience)
        self.whole = False
        # Once it was known it is shown again while a newcomer's first episode is waited for.
        if counted and (not self.waits or self.mean is not None):
            latest = [list(islice(reversed(one.episodes), self._each)) for one in counted]
            self.mean = _mean([value for value, _ in one] for one in latest)
            self.mean_length = _mean(
                [length for _, length in one if length is not None] for one in latest
            )
            self.whole = not self.waits and sum(map(len, latest)) >= LAST
            self.metrics = [
                list(islice(reversed(one.metrics or ()), self._each)) for one in counted
            ]

    def news(self) -> str:
        """Returns a line for the log, once; "" = nothing new."""
        return self._news.pop(0) if self._news else ""

    def _remark(self, envs: int, patience: int) -> None:
        if self.mean is None and self.waits and self.told >= LAST and "waits" not in self._said:
            self._said.add("waits")
            self._news.append(
                f"the mean return waits for the first episode of {self.waits} of {envs}"
                " environments: those that end first are the short ones"
            )
        if self.endless and "endless" not in self._said:
            self._said.add("endless")
            self._news.append(
                f"the mean return leaves out {self.endless} environment"
                f"{'s' if self.endless > 1 else ''} without an end of an episode in {patience}"
                " steps: give episodes a time limit"
            )

    def state(self) -> dict[str, Any]:
        """Returns plain data for the checkpoint."""
        return {
            "mean": self.mean,
            **({"whole": True} if self.whole else {}),  # earlier releases have none
            "longest": self._longest,
            "each": self._each,
            "streams": [
                [
                    *key,
                    one.joined,
                    one.heard,
                    one.unrolls,
                    one.steps,
                    [
                        [column.at, *(value for value, _ in column.episodes)]
                        for column in one.columns
                    ],
                ]
                for key, one in self._streams.items()
            ],
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.mean, self._longest, self._each = state["mean"], state["longest"], state["each"]
        self.whole = "whole" in state
        for inc, number, joined, heard, unrolls, steps, columns in state["streams"]:
            stream = _Stream(joined, [_Environment(at, returns) for at, *returns in columns])
            stream.heard, stream.unrolls, stream.steps = heard, unrolls, steps
            self._streams[inc, number] = stream
            self._envs += len(columns)
        self._live = len(self._streams)


def _mean(environments: Iterable[Sequence[float]]) -> float | None:
    """Returns the mean in which each environment weighs the same; None = there are no numbers."""
    means = [sum(one) / len(one) for one in environments if one]
    return sum(means) / len(means) if means else None
