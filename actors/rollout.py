"""Turns steps into unrolls: T+1 observations, T of everything else, time first.

    open -> [acted(t) -> environments step -> stepped: reward and flags of t] x T -> close: row T

The columns of an unroll may come in parts that are stepped by themselves: each part goes from row
to row as it can, and the unroll is full when all are.

A slow part ends early, after t < T steps, when its first step has become too old: close writes row
t, and what was not played is dead. V-trace then values the last step by row t and looks no further,
so the targets are those of an unroll of t steps. A part whose step is not answered while the others
wait for it is suspended: it ends so, and acts once more on row t, as row 0 of the next unroll.

The row after the last step is row 0 of the next unroll, so that the learner can value what comes
after it. A leaf that is seen stacked begins with the rows that came before row 0; what a network
remembers, and sees of the step before, is held for row 0.
"""

import math
from collections.abc import Mapping
from typing import Any

import lz4.block
import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.actors.episodes import RunningEpisodes
from headrace.actors.metric_sums import MetricSums
from headrace.broker.peers.outbox import FinishedUnroll
from headrace.broker.protocol.messages import Buffer
from headrace.learner.config import UnrollConfig
from headrace.learner.spaces import (
    DEAD,
    Field,
    Spaces,
    out_of_bounds,
    out_of_bounds_words,
    unroll_fields,
)

# The least share of an unroll that leaves early: who is ten times slower than the others plays that
# much while they play a whole one. A shorter one would fill its place in a batch with little.
_LEAST_SHARE = 10

Rows = Mapping[str, NDArray[np.generic]]


def versions_to_play(max_lag: int, waited: int) -> int:
    """Returns how many versions an unroll's first step may be behind while the unroll goes on, so
    that it is at most max_lag + 2 old when it is trained, after `waited` further versions. One that
    spans two versions only is never cut: with a slow learner every unroll may."""
    return min(max_lag, max(1, max_lag + 1 - waited))


class Part:
    """Writes the columns of an unroll that are stepped together."""

    def __init__(self, columns: slice, *, length: int, metrics: MetricSums | None = None) -> None:
        self.columns = columns  # of the unroll
        self._metrics = None if metrics is None else metrics.steps[:, columns]
        self.versions = (0, 0)  # of the weights that acted since row 0: lowest, highest
        self.steps = length  # of the unroll that was closed last; below `length` = it ended early
        self._length = length
        self._least = math.ceil(length / _LEAST_SHARE)
        self._t = length  # steps written; length = no unroll is open
        self._acted = False  # the step at t has its action, and waits for its reward
        self.lived = False  # `versions` are of live steps
        self._again: tuple[Any, ...] | None = None  # what acted() was given, of a suspended step

    @property
    def full(self) -> bool:
        """Says whether the next step needs a new unroll: this one is full, or none was begun."""
        return self._t == self._length

    def filling(self, oldest: int = 0) -> bool:
        """Says whether the environments' next answer is the last step of this unroll: it is full
        then, or holds a step of a version before `oldest`."""
        steps = self._t + 1
        early = self.versions[0] < oldest and steps >= self._least
        return self._acted and (early or steps == self._length)

    def open(self, named: Mapping[str, NDArray[Any]], newest: Rows) -> None:
        """Begins to write the arrays of an unroll, by field; `newest` are those of observations,
        from row 0 on."""
        columns, self._t = self.columns, 0
        self._newest = {name: array[:, columns] for name, array in newest.items()}
        self._action, self._logp = named["action"][:, columns], named["logp"][:, columns]
        self._reward, self._flags = named["reward"][:, columns], named["flags"][:, columns]
        self.lived = False
        if self._again is not None:
            self.acted(*self._again)

    def acted(
        self, rows: Rows, actions: NDArray[Any], logp: NDArray[np.float32], version: int
    ) -> None:
        """Writes these observations and the actions that the policy chose for them."""
        t = self._t
        for name, newest in self._newest.items():
            newest[t] = rows[name]
        self._action[t] = actions
        self._logp[t] = logp
        low, high = self.versions if self.lived else (version, version)
        self.versions = (min(low, version), max(high, version))
        self._acted = True

    def stepped(
        self,
        reward: NDArray[np.float32],
        flags: NDArray[np.uint8],
        metrics: NDArray[np.float64] | None = None,
    ) -> None:
        """Writes the environments' answer to the action before, if there was one."""
        if self._acted:
            self._reward[self._t] = reward
            self._flags[self._t] = flags
            if self._metrics is not None:
                self._metrics[self._t] = metrics
            self._acted, self._again = False, None
            self.lived = self.lived or not (flags & DEAD).all()
            self._t += 1

    def close(self, rows: Rows) -> None:
        """Writes the observations after the last step; they stand for those not seen as well."""
        self.steps, self._t = self._t, self._length
        for name, newest in self._newest.items():
            newest[self.steps :] = rows[name]
        for array in (self._action, self._logp, self._reward, self._flags):
            array[self.steps :] = 0
        if self._metrics is not None:
            self._metrics[self.steps :] = np.nan

    def suspend(self) -> None:
        """Ends the unroll before the step that is not answered, if it is not full."""
        if self.full:
            return
        t, rows = self._t, {name: newest[self._t].copy() for name, newest in self._newest.items()}
        if self._acted:
            self._again = rows, self._action[t].copy(), self._logp[t].copy(), self.versions[1]
        else:  # it has never acted
            rows = dict.fromkeys(rows, np.zeros((), np.uint8))
        self.close(rows)

    def mark_unplayed(self) -> None:
        """Marks the steps that were not played as dead."""
        self._flags[self.steps :] = DEAD


class Rollout:
    """Holds one unroll under construction, and its environments' running episodes."""

    def __init__(
        self,
        spaces: Spaces,
        *,
        length: int,
        envs: int,
        parts: int = 1,
        memory: int = 0,
        previous: bool = False,
        largest: float = UnrollConfig().largest,
    ) -> None:
        self.largest = largest  # no float that is sent lies beyond +- this
        width, names = envs // parts, len(spaces.metrics)
        self.metrics = MetricSums(length=length, envs=envs, metrics=names) if names else None
        self.parts = [
            Part(slice(first, first + width), length=length, metrics=self.metrics)
            for first in range(0, envs, width)
        ]
        self._leaves = spaces.observation
        self._fields = unroll_fields(
            spaces, length=length, envs=envs, memory=memory, previous=previous
        )
        self._played = np.full(envs, length)  # steps of each column in the unroll counted last
        self.began = False  # an unroll was opened and not finished
        self.episodes = RunningEpisodes(envs)

    def open(self, history: Rows) -> None:
        """Begins an unroll; the sampler has credit for it. Its arrays are new: the old ones belong
        to the outbox until they are acknowledged. `history` is by field, time first."""
        self._arrays = [_array(field) for field in self._fields]
        named = {field.name: array for field, array in zip(self._fields, self._arrays, strict=True)}
        for name, rows in history.items():
            named[name][: len(rows)] = rows
        self._reward, self._flags = named["reward"].view(np.float32), named["flags"].view(np.uint8)
        self._sums = named.get("metrics", np.empty(0)).view(np.float64)
        self._obs = {leaf.name: named[f"obs.{leaf.name}"] for leaf in self._leaves}
        # Row 0 of the unroll comes after the history.
        newest = {leaf.name: self._obs[leaf.name][leaf.stack - 1 :] for leaf in self._leaves}
        for part in self.parts:
            part.open(named, newest)
        self.began = True

    def count(self) -> None:
        """Counts the episodes that ended in an unroll that is full, in the order of their ends."""
        for part in self.parts:
            self._played[part.columns] = part.steps
        if self.metrics is not None:
            self.metrics.sum_up(self._flags, self._sums)
        self.episodes.count(self._reward, self._flags, self._played)

    def finish(self) -> FinishedUnroll:
        """Returns the unroll, which is full."""
        self.began = False
        for part in self.parts:
            part.mark_unplayed()
        buffers = tuple(map(_wire, self._fields, self._arrays))
        digest = xxhash.xxh3_64()
        for buffer in buffers:
            digest.update(buffer)
        live = self._flags.size - int(np.count_nonzero(self._flags & DEAD))
        lived = [part for part in self.parts if part.lived] or self.parts
        lows, highs = zip(*(part.versions for part in lived), strict=True)
        versions = min(lows), max(highs)
        return FinishedUnroll(
            buffers, versions, live, digest.intdigest(), self.episodes.ended, self.episodes.told
        )

    def fault(self) -> tuple[int, str] | None:
        """Returns the first column that holds what must never reach a learner, and what that is;
        None = no column does."""
        named = {"reward": self._reward, **self._obs}
        for name, array in named.items():
            number = out_of_bounds(array, self.largest)
            if number is not None:
                right = (np.abs(array) <= self.largest).reshape(*array.shape[:2], -1)
                column = int(np.flatnonzero(~right.all(axis=(0, 2)))[0])
                return column, out_of_bounds_words(name, number, self.largest)
        return None


def _array(field: Field) -> NDArray[np.generic]:
    """Returns an array that is written time first and lies in memory as it will be sent."""
    if not field.packed:
        return np.empty(field.shape, field.dtype)
    time, columns, *rest = field.shape
    return np.empty((columns, time, *rest), field.dtype).swapaxes(0, 1)


def _wire(field: Field, array: NDArray[np.generic]) -> Buffer:
    if not field.packed:
        return array.data.cast("B") if array.size else b""
    packed: bytes = lz4.block.compress(array.swapaxes(0, 1).data, store_size=False)
    return packed
