"""The uses of a batch: one new batch in, the samples of some optimiser steps out.

    impala   the batch, beside it unrolls from memory if replay_share says so
    appo     the newest `buffer_batches` batches in a ring, `uses` steps for each new one
    ppo      `epochs` times through the batch, in `minibatches` shuffled parts

Every rank makes the same number of steps. What is kept for later is a copy: the batch's memory goes
back to the receiver.
"""

import operator
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from headrace.learner.algorithms.loss_inputs import LossBatch, Targets
from headrace.learner.config import AlgorithmConfig, number
from headrace.learner.spaces import DEAD


class Sample(NamedTuple):
    """Holds what one optimiser step trains on; with memory in the network, whole unrolls."""

    obs: dict[str, Tensor]  # impala, appo: [T+1, B, ...]; ppo: steps in any shape
    memory: Tensor | None  # [B, S] at row 0
    begins: Tensor | None  # [T+1, B]
    loss: LossBatch
    unrolls: float  # how many it holds; a part of one is a fraction

    def columns(self, at: Tensor | slice) -> "Sample":
        """Returns these columns, whole unrolls or not; a copy unless `at` is a slice."""
        count = self.loss.flags.shape[1]
        share = len(at) if isinstance(at, Tensor) else len(range(*at.indices(count)))
        return Sample(
            {name: rows[:, at] for name, rows in self.obs.items()},
            None if self.memory is None else self.memory[at],
            None if self.begins is None else self.begins[:, at],
            _each(self.loss, lambda rows: rows[:, at]),
            self.unrolls * share / count,
        )

    def named(self) -> Iterator[tuple[str, Tensor]]:
        """Yields its tensors with the names that they have in a file."""
        yield from ((f"obs.{name}", rows) for name, rows in self.obs.items())
        yield from zip(("action", "logp", "reward", "flags"), self.loss.recorded, strict=True)
        for name, rows in (("memory", self.memory), ("begins", self.begins)):
            if rows is not None:
                yield name, rows

    def copy(self) -> "Sample":
        return self._mapped(torch.clone)

    def on(self, device: torch.device) -> "Sample":
        """Returns it on a device: itself, if it is there."""
        return self._mapped(lambda rows: rows.to(device))

    def _mapped(self, change: Callable[[Tensor], Tensor]) -> "Sample":
        return Sample(
            {name: change(rows) for name, rows in self.obs.items()},
            None if self.memory is None else change(self.memory),
            None if self.begins is None else change(self.begins),
            _each(self.loss, change),
            self.unrolls,
        )


class BatchUses(Protocol):
    """Makes samples of batches; the train loop steps on each, and may leave before the last one."""

    def samples(self, fresh: Sample) -> Iterator[Sample]:
        """Yields the samples to train on."""


def uses_of(config: AlgorithmConfig) -> BatchUses:
    if config.name == "ppo":
        return UseInEpochs(config)
    if config.name == "appo" and max(number(config.uses), number(config.buffer_batches)) > 1:
        return ReplayRing(config)
    if config.name == "impala" and config.replay_share:
        return UseWithReplay(config)
    return UseOnce()


class UseOnce:
    """Uses every batch once, as it comes."""

    def samples(self, fresh: Sample) -> Iterator[Sample]:
        yield fresh


@dataclass(slots=True, eq=False)
class _Kept:
    sample: Sample
    used: int


class ReplayRing:
    """Keeps the newest batches: each is used when it comes, and again at even distances later.

    Until the ring is full there are fewer steps for each new batch.
    """

    def __init__(self, config: AlgorithmConfig) -> None:
        count, uses = number(config.buffer_batches), number(config.uses)
        # The number of batches that came after one, at each of its further uses.
        self._ages = [round(use * (count - 1) / (uses - 1)) for use in range(1, uses)]
        self._kept: deque[Sample] = deque(maxlen=count)

    def samples(self, fresh: Sample) -> Iterator[Sample]:
        newest = fresh.copy()
        yield newest
        self._kept.append(newest)  # not after a step that was not finite
        for age in self._ages:
            if age < len(self._kept):
                try:
                    yield self._kept[-1 - age]
                except GeneratorExit:  # its step was not finite
                    del self._kept[-1 - age]
                    raise


class UseWithReplay:
    """Adds unrolls that were trained on before to the new ones; V-trace corrects for their age.

    The fraction of an unroll that is due waits for the next batch, so that replay_share is kept
    however few unrolls a rank's batch has. Unrolls that the memory lacks are not made up for.
    """

    def __init__(self, config: AlgorithmConfig) -> None:
        self._each = config.replay_share / (1 - config.replay_share)  # old unrolls to a new one
        self._due = 0.0  # the part of an unroll that earlier batches left over
        self._recent = config.replay_pick == "recent"
        self._kept: deque[_Kept] = deque(maxlen=config.replay_unrolls)

    def samples(self, fresh: Sample) -> Iterator[Sample]:
        due = self._due + fresh.unrolls * self._each
        picked = self._pick(min(int(due), len(self._kept)))
        for kept in picked:
            kept.used += 1
        try:
            # Never `fresh` itself: ranks may differ in whether they pick anything, and the loop
            # must count the live steps on all of them or on none.
            yield (
                _beside([fresh, *(kept.sample for kept in picked)]) if picked else fresh._replace()
            )
        except GeneratorExit:  # the step was not finite, and one of these may be why
            for kept in picked:
                self._kept.remove(kept)
            raise
        self._due = due % 1
        width = round(fresh.loss.flags.shape[1] / fresh.unrolls)
        for at in range(0, fresh.loss.flags.shape[1], width):
            self._kept.append(_Kept(fresh.columns(slice(at, at + width)).copy(), 1))

    def _pick(self, count: int) -> list[_Kept]:
        if self._recent:
            newest_first = list(self._kept)[::-1]
            return sorted(newest_first, key=lambda kept: kept.used)[:count]
        return [self._kept[int(at)] for at in torch.randperm(len(self._kept))[:count]]


class UseInEpochs:
    """Goes through one batch, which has its targets, several times in shuffled parts."""

    def __init__(self, config: AlgorithmConfig) -> None:
        self._epochs, self._parts = config.epochs, config.parts

    def samples(self, fresh: Sample) -> Iterator[Sample]:
        cut = _by_step if fresh.memory is None else _by_column
        for _ in range(self._epochs):
            yield from cut(fresh, self._parts)


def with_targets(fresh: Sample, targets: Targets) -> Sample:
    """Returns the sample with ppo's targets, without the last row, which was for its value only."""
    return fresh._replace(
        obs={name: rows[:-1] for name, rows in fresh.obs.items()},
        begins=None if fresh.begins is None else fresh.begins[:-1],
        loss=fresh.loss._replace(targets=targets),
    )


def _by_step(whole: Sample, parts: int) -> Iterator[Sample]:
    live = whole.loss.live.flatten().nonzero().squeeze(1)
    order = live[torch.randperm(len(live)).to(live.device)]
    obs = {name: rows.flatten(0, 1) for name, rows in whole.obs.items()}
    loss = _each(whole.loss, lambda rows: rows.flatten(0, 1))
    for at in order.tensor_split(parts):
        rows = at if len(at) else order.new_zeros(1)
        picked = _each(loss, operator.itemgetter(rows))
        here = {name: rows_of[rows] for name, rows_of in obs.items()}
        yield _counted(Sample(here, None, None, picked, whole.unrolls / parts), len(at))


def _by_column(whole: Sample, parts: int) -> Iterator[Sample]:
    """Yields parts of whole columns: a network with memory needs its rows in order."""
    flags = whole.loss.flags
    for at in torch.randperm(flags.shape[1]).to(flags.device).tensor_split(parts):
        yield _counted(whole.columns(at if len(at) else at.new_zeros(1)), len(at))


def _counted(sample: Sample, wanted: int) -> Sample:
    """Marks the sample dead where none was wanted: a rank with nothing left still takes part in the
    step, and not every network accepts an empty tensor."""
    if wanted:
        return sample
    dead = torch.full_like(sample.loss.flags, DEAD)
    return sample._replace(loss=sample.loss._replace(flags=dead), unrolls=0.0)


def _beside(samples: list[Sample]) -> Sample:
    """Joins the columns of all samples into one."""
    first = samples[0]
    memories = [s.memory for s in samples if s.memory is not None]
    begins = [s.begins for s in samples if s.begins is not None]
    recorded = zip(*(s.loss.recorded for s in samples), strict=True)
    action, logp, reward, flags = (torch.cat(rows, dim=1) for rows in recorded)
    return Sample(
        {name: torch.cat([s.obs[name] for s in samples], dim=1) for name in first.obs},
        torch.cat(memories) if memories else None,
        torch.cat(begins, dim=1) if begins else None,
        LossBatch(action, logp, reward, flags),
        sum(s.unrolls for s in samples),
    )


def _each(loss: LossBatch, change: Callable[[Tensor], Tensor]) -> LossBatch:
    action, logp, reward, flags = map(change, loss.recorded)
    targets = None if loss.targets is None else Targets(*map(change, loss.targets))
    return LossBatch(action, logp, reward, flags, targets)
