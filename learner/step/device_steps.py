"""Optimiser steps that the device decides on: the host launches them and looks a step later.

A step that is not finite is skipped by the device itself. What the host must know (was it finite,
the loss's figures, the weights to publish) goes to memory of the host behind it, while the next
step is at work, so neither waits for the other. On a GPU all of it is one captured graph; with
several ranks two, and between them their gradients are averaged. On a CPU the same code runs piece
by piece and gives the same numbers.
"""

import time
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headrace.learner.algorithms import optimiser_step
from headrace.learner.algorithms.advantages import SQUARE, keeps_square, share_of
from headrace.learner.algorithms.batch_uses import Sample
from headrace.learner.algorithms.loss_inputs import Coefficients, Loss
from headrace.learner.batches.batch import Batch
from headrace.learner.batches.upload import BatchUpload, sample_of
from headrace.learner.models.gaussians import LOG_STD
from headrace.learner.models.kernels.graph import Graph
from headrace.learner.models.normalise import value_fit
from headrace.learner.nonfinite import BrokenStep, finite
from headrace.learner.ranks import Facts
from headrace.learner.step.after_step import adapt_kl, move_target, moves_target, update_statistics
from headrace.learner.step.flight import Flight
from headrace.learner.step.landing import Landing
from headrace.learner.step.sample_loss import loss_of, norm_of
from headrace.learner.train_parts import TrainParts
from headrace.learner.weights import FlatWeights

# What the host sets for each step, in the order in which the device has it.
_SET = ("lr", "clip", "entropy_coef", "kl_coef", "steps", "share")
_FIT = "fit."  # begins the names of the figures that value_fit gives


class DeviceSteps:
    """Launches one step for each batch."""

    late = True

    def __init__(
        self, parts: TrainParts, optimiser: torch.optim.Optimizer, flat: FlatWeights
    ) -> None:
        self._parts = parts
        self._optimiser: Any = optimiser
        self._flat = flat
        self._parameters = list(parts.model.parameters())
        self._upload = BatchUpload(parts.device)
        self._set = torch.zeros(len(_SET), device=parts.device)
        (group,) = optimiser.param_groups
        cuda = parts.device.type == "cuda"
        group.update(lr=self._set[0], capturable=cuda)
        # Where what a step gives arrives; two of them take turns.
        self._landings = [Landing(len(_SET), flat.nbytes, parts.device) for _ in range(2)]
        self._begun = 0
        self._batch: dict[str, Tensor] = {}  # where the graph finds the batch
        self._unrolls = 0  # in it
        self._loss: tuple[Sample, Loss]  # of the latest step
        # Its gradients and the square of its advantages, for all ranks to add up.
        self._shared: Tensor
        self._took: _Took  # what the latest step leaves for the statistics
        self._figures: Tensor  # of the latest step, by these names
        self._names: list[str] = []
        # The running mean square of the advantages; None = not kept, or of no step yet.
        self._square = _tensor_of(parts.progress.advantage_square, parts.device)
        kept, alone = keeps_square(parts.algorithm), parts.ranks.world == 1

        def ready() -> bool:
            return not kept or self._square is not None

        self._backward = Graph(self._run_backward, capture=cuda and not alone, ready=ready)
        self._update = Graph(
            self._run_update, capture=cuda and not alone, ready=lambda: self._backward.captured
        )
        self._step = Graph(self._run_step, capture=cuda and alone, ready=ready)
        # The statistics of several ranks are added up in the middle of it.
        self._after = Graph(
            self._run_after, capture=cuda and alone, ready=lambda: self._step.captured
        )

    def begin(self, batch: Batch, facts: Facts) -> Flight:
        """Launches the step of a batch."""
        parts, began = self._parts, time.perf_counter()
        progress, timed = parts.progress, parts.metrics.timed
        landing = self._landings[self._begun % len(self._landings)]
        self._begun += 1
        progress.learner_steps += 1
        progress.used(batch.unrolls * parts.ranks.world)  # the others have taken as many
        with timed("upload"):
            tensors = self._upload(batch)
            self._place(tensors, batch.unrolls)
        steps, used, moves = max(1, facts.steps), parts.settings_used(), moves_target(parts)
        with timed("forward"):
            self._set.copy_(landing.settings(self._settings(used["lr"], steps)), non_blocking=True)
            self._step()
        with timed("optimise"):
            if moves:
                move_target(parts)
            parts.curriculum.update(parts.moment())
            self._after()
            landing.take(self._figures, self._flat.buffer)
        return Flight(
            batch=batch, facts=facts, tensors=tensors, whole=norm_of(parts, steps), used=used,
            began=began, taken=1, landing=landing, moved=moves,
        )  # fmt: skip

    def finish(self, flight: Flight) -> None:
        """Waits until the step is over."""
        parts, progress = self._parts, self._parts.progress
        assert flight.landing is not None
        with parts.metrics.timed("backward"):
            found = dict(zip(self._names, flight.landing.figures(), strict=True))
        well, flight.sound = bool(found.pop("finite")), bool(found.pop("sound"))
        flight.norm, square = found.pop("grad_norm"), found.pop("square")
        fit = {name.removeprefix(_FIT): found.pop(name) for name in [*found] if _FIT in name}
        if not well:
            progress.learner_steps -= 1
            progress.used(-flight.batch.unrolls * parts.ranks.world)
            flight.fresh = sample_of(
                flight.tensors, parts.spaces, previous=parts.previous, unrolls=flight.batch.unrolls
            )
            flight.taken, flight.broken = 0, BrokenStep(flight.fresh, found)
            return
        flight.stats, flight.fit = found, lambda: fit
        if SQUARE in found:
            progress.advantage_square = float(square)
        if flight.moved and parts.algorithm.kl_target and "target_kl" in found:
            adapt_kl(parts, parts.ranks.mean(found["target_kl"]))

    def weights(self, flight: Flight) -> memoryview:
        """Returns the weights as they were after this step."""
        assert flight.landing is not None
        return flight.landing.weights()

    def close(self) -> None:
        """Does nothing: nothing works beside the device."""

    def _place(self, tensors: dict[str, Tensor], unrolls: int) -> None:
        """Puts a batch where the graph finds it."""
        self._unrolls = unrolls
        if not self._batch:
            self._batch = {name: torch.empty_like(tensor) for name, tensor in tensors.items()}
        torch._foreach_copy_(list(self._batch.values()), list(tensors.values()))

    def _settings(self, lr: float, steps: int) -> list[float]:
        coefs = self._parts.coefficients()
        share = share_of(self._parts.progress.learner_steps)
        numbers = (lr, coefs.clip, coefs.entropy_coef, coefs.kl_coef, steps, share)
        return [float(number) for number in numbers]

    def _run_step(self) -> None:
        """Steps, and has the ranks average their gradients if there are several."""
        if self._parts.ranks.world == 1:
            self._run_backward()
            self._run_update()
            return
        self._backward()
        self._parts.ranks.total(self._shared)
        self._update()

    def _run_backward(self) -> None:
        parts, (_, clip, entropy_coef, kl_coef, steps, _) = self._parts, self._set.unbind()
        returns = parts.model.returns
        coefs = Coefficients(
            clip=clip,
            entropy_coef=entropy_coef,
            kl_coef=kl_coef,
            std=1.0 if returns is None else returns.std.float(),
            advantage_square=self._square,
        )
        sample = sample_of(
            self._batch, parts.spaces, previous=parts.previous, unrolls=self._unrolls
        )
        loss = loss_of(parts, parts.model, sample, norm=norm_of(parts, steps), coefs=coefs)
        self._optimiser.zero_grad(set_to_none=True)
        loss.total.backward()  # type: ignore[no-untyped-call]
        # Without the total: it would keep the whole graph of the backward pass.
        self._loss = sample, loss._replace(total=steps)
        if parts.ranks.world > 1:
            square = loss.stats.get(SQUARE, steps).float().reshape(1)
            self._shared = torch.cat([*(grad.flatten() for grad in self._gradients()), square])

    def _gradients(self) -> list[Tensor]:
        return [one.grad for one in self._parameters if one.grad is not None]

    def _run_update(self) -> None:
        parts, (sample, loss) = self._parts, self._loss
        if parts.ranks.world > 1:
            grads = self._gradients()
            mean, sizes = self._shared.div(parts.ranks.world), [grad.numel() for grad in grads]
            *averaged, square = torch.split(mean, [*sizes, 1])
            new = [part.view_as(grad) for part, grad in zip(averaged, grads, strict=True)]
            torch._foreach_copy_(grads, new)
            if SQUARE in loss.stats:
                loss = loss._replace(stats={**loss.stats, SQUARE: square[0]})
        norm = optimiser_step.clip_gradients(parts.config, self._parameters)
        well = torch.isfinite(norm)
        self._optimiser.found_inf = (~well).float()  # the fused step heeds it, as of a GradScaler
        self._optimiser.step()
        if parts.model.log_std is not None:
            parts.model.log_std.data.clamp_(*LOG_STD)
        self._took = _Took(sample, loss, norm, well)

    def _run_after(self) -> None:
        """Updates the statistics, and lays out what the host is to know."""
        parts, (sample, loss, norm, well) = self._parts, self._took
        update_statistics(parts, sample, loss.vs, sample.loss.live * well)
        if SQUARE in loss.stats:
            self._move_square(loss.stats[SQUARE], well)
        fit = value_fit(loss.value, loss.vs, loss.share)
        figures = {
            "finite": well,
            "sound": finite(self._parameters),
            "grad_norm": norm,
            "square": well if self._square is None else self._square,
            **loss.stats,
            **{_FIT + name: figure for name, figure in fit.items()},
        }
        self._names = list(figures)
        self._figures = torch.stack([figure.double() for figure in figures.values()])
        self._flat.gather()

    def _move_square(self, part: Tensor, well: Tensor) -> None:
        if self._square is None:
            self._square = part.double().clone() if bool(well) else None
            return
        share = self._set[-1].double()
        moved = self._square * (1 - share) + part * share
        self._square.copy_(torch.where(well, moved, self._square))


class _Took(NamedTuple):
    """Holds what a step leaves on the device."""

    sample: Sample
    loss: Loss  # without its total
    norm: Tensor  # of the gradient
    well: Tensor  # the step was finite


def _tensor_of(number: float | None, device: torch.device) -> Tensor | None:
    return None if number is None else torch.tensor(number, dtype=torch.float64, device=device)
