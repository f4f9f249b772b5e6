"""Optimiser steps that the host decides on: each is over before the next one begins.

It looks at every gradient before it is used, so a batch can be left early, and any algorithm, any
number of ranks and any device will do.
"""

import functools
import time
from collections.abc import Callable

import torch
from torch import nn

from headrace.learner.algorithms.batch_uses import uses_of
from headrace.learner.batches.batch import Batch
from headrace.learner.batches.upload import BatchUpload, sample_of
from headrace.learner.models.normalise import value_fit
from headrace.learner.nonfinite import BrokenStep
from headrace.learner.ranks import Facts
from headrace.learner.step.after_step import after_step
from headrace.learner.step.flight import Flight
from headrace.learner.step.one_step import OneStep
from headrace.learner.step.sample_loss import norm_of, with_targets_of
from headrace.learner.train_parts import TrainParts
from headrace.learner.weights import Body


class HostSteps:
    """Runs the steps of each batch to their end."""

    late = False

    def __init__(
        self,
        parts: TrainParts,
        network: nn.Module,
        optimiser: torch.optim.Optimizer,
        dump: Callable[[], Body],
    ) -> None:
        self._parts = parts
        self.step = OneStep(parts, network, optimiser)
        self._optimiser = optimiser
        self._dump = dump  # the weights as they are now
        self._uses = uses_of(parts.algorithm)
        self._upload = BatchUpload(parts.device)

    def begin(self, batch: Batch, facts: Facts) -> Flight:
        """Steps once, or as often as the algorithm uses its batches."""
        parts, began = self._parts, time.perf_counter()
        ranks, timed = parts.ranks, parts.metrics.timed
        with timed("upload"):
            tensors = self._upload(batch)
            fresh = sample_of(tensors, parts.spaces, previous=parts.previous, unrolls=batch.unrolls)
        used = parts.settings_used()
        for group in self._optimiser.param_groups:
            group["lr"] = used["lr"]
        whole = norm_of(parts, max(1, facts.steps))
        prepared = with_targets_of(parts, fresh, whole)
        flight = Flight(
            batch=batch, facts=facts, tensors=tensors, fresh=fresh, whole=whole, used=used,
            began=began, vs=None if prepared.loss.targets is None else prepared.loss.targets.vs,
        )  # fmt: skip
        most = -(-prepared.loss.flags.numel() // parts.algorithm.parts)
        for sample in self._uses.samples(prepared):
            norm = whole if sample is fresh else None
            loss, grad_norm, finite = self.step(sample, norm, most=most)
            if not finite:
                flight.broken = BrokenStep(sample, loss.stats)
                break
            flight.taken += 1
            flight.stats, flight.norm = loss.stats, grad_norm
            flight.fit = functools.partial(value_fit, loss.value, loss.vs, loss.share)
            flight.vs = loss.vs if flight.vs is None else flight.vs
            parts.progress.used(sample.unrolls * ranks.world)  # the others have taken as many
            if after_step(parts, loss):
                break
        return flight

    def finish(self, flight: Flight) -> None:
        """Does nothing: all is known."""

    def close(self) -> None:
        """Ends a compiler that is still at work."""
        self.step.close()

    def weights(self, flight: Flight) -> Body:  # noqa: ARG002 - the latest one's
        """Returns them as they are now."""
        return self._dump()
