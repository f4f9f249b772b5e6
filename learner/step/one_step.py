"""The optimiser step on one sample: part by part, or, once that pays, by a compiled function or one
graph."""

import logging
import math
import time
from functools import partial

import torch
from torch import nn

from headrace.learner.algorithms import optimiser_step
from headrace.learner.algorithms.batch_uses import Sample
from headrace.learner.algorithms.loss_inputs import LossNorm
from headrace.learner.step.choice import may_capture, may_compile
from headrace.learner.step.compile_ahead import CompileAhead
from headrace.learner.step.compiled_step import CompiledStep, FlatStep, OneGraph, StepParts, Stepped
from headrace.learner.step.sample_loss import loss_of
from headrace.learner.train_parts import TrainParts

log = logging.getLogger(__name__)

# Seconds of a core that steps have taken part by part before one is compiled with "auto": about as
# many as that takes, so that at worst a run spends twice the time.
_PAYS_AFTER_S = 30.0
# The same for a graph of a GPU: a second's steps tell how long one takes. In the first few of them
# libraries choose their kernels.
_CAPTURED_AFTER_S, _FIRST = 1.0, 5
# How far the gradient's norm may be from that of the parts; in 16 bits, as GPUs multiply, it is
# rounded otherwise where dead steps fill up a sample.
_SAME, _SAME_IN_16_BITS = 1e-3, 1e-2


class OneStep:
    """Steps, and has the step compiled or captured when it has taken long enough."""

    def __init__(
        self, parts: TrainParts, network: nn.Module, optimiser: torch.optim.Optimizer
    ) -> None:
        self._parts = parts
        self._network = network  # its backward pass averages over the ranks
        self._optimiser = optimiser
        # Looking them up takes longer than clipping them.
        self._parameters = list(parts.model.parameters())
        self._captures = may_capture(parts)
        self._wanted = self._captures or may_compile(parts)
        self._after_s = 0.0 if parts.config.compile is True else _PAYS_AFTER_S
        if self._captures:
            self._after_s = _CAPTURED_AFTER_S
        self._first = _FIRST if self._captures else 0  # steps that are not counted yet
        self._spent_s, self._steps = 0.0, 0  # part by part
        self._stats: list[str] = []  # the names of the loss's figures
        self._ahead: CompileAhead | None = None  # at work
        self._anew = False  # it has begun anew, as batches had grown meanwhile
        self._compiled: CompiledStep | None = None

    def __call__(self, sample: Sample, norm: LossNorm | None, *, most: int) -> Stepped:
        """Steps, unless the gradient is not finite. `norm`: None = its live steps are counted;
        `most`: steps in such a sample, if they are in no order."""
        if self._compiled is not None and self._compiled.fits(sample):
            with self._parts.metrics.timed("forward"):
                return self._compiled(sample, self._lr, self._parts.coefficients())
        if not self._wanted:
            return self._in_parts(sample, norm)
        made = self._made(sample, most)
        began = time.thread_time()
        stepped = self._in_parts(sample, norm)
        if self._first:
            self._first -= 1
        else:
            self._spent_s += time.thread_time() - began
            self._steps += 1
        self._stats = list(stepped.loss.stats)
        if made is not None:
            self._judge(*made, stepped)
        return stepped

    @property
    def settled(self) -> bool:
        """Tells whether it is known if the step is in one piece."""
        return not self._wanted

    @property
    def _lr(self) -> float:
        return float(self._optimiser.param_groups[0]["lr"])

    def _in_parts(self, sample: Sample, norm: LossNorm | None) -> Stepped:
        parts, timed = self._parts, self._parts.metrics.timed
        with timed("forward"):
            loss = loss_of(parts, self._network, sample, norm=norm)
        with timed("backward"):
            self._optimiser.zero_grad(set_to_none=True)
            parts.ranks.collective(loss.total.backward)  # the gradients are averaged meanwhile
        with timed("optimise"):
            grad_norm = optimiser_step.clip_gradients(parts.config, self._parameters)
            # The gradients are the same on every rank by now, so every rank decides alike.
            finite = bool(torch.isfinite(grad_norm))
            if finite:
                self._optimiser.step()
        return Stepped(loss, grad_norm, finite)

    def _made(self, sample: Sample, most: int) -> tuple[CompiledStep, Stepped, float] | None:
        """Returns the step in one piece, and what it gives, once it is time and it is there."""
        if self._spent_s < self._after_s or not self._optimiser.state:
            return None
        coefs = self._parts.coefficients()
        try:
            if self._captures:
                flat = self._flat(sample, most)
                graph = CompiledStep(flat, partial(OneGraph, flat), self._stats)
                return graph, *graph.tried(sample, self._lr, coefs)
            if self._ahead is None:
                self._ahead = CompileAhead(self._flat(sample, most), sample)
            if (reason := self._ahead.ended()) is None:
                return None
            if not reason:
                compiled = self._ahead.made(self._stats)
                if compiled.fits(sample):
                    return compiled, *compiled.tried(sample, self._lr, coefs)
                reason = "batches differ in size"
                if not self._anew:  # those with replay grow until the memory is full
                    self._anew = True
                    self.close()
                    return None
        except Exception as error:  # noqa: BLE001 - a user's code may be in it; the parts go on
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
        self._settle(reason, well=False)
        return None

    def _flat(self, sample: Sample, most: int) -> FlatStep:
        own = self._parts
        return FlatStep(
            StepParts(own.algorithm, own.config, own.model, own.target, own.device),
            self._optimiser,
            sample,
            most=most,
            squares=own.coefficients().advantage_square is not None,
            fused=self._captures,
        )

    def _judge(
        self, compiled: CompiledStep, found: Stepped, took_s: float, wanted: Stepped
    ) -> None:
        """Takes the step in one piece if it gives the same as the parts, in less time."""
        parted_s = self._spent_s / self._steps
        told = f"{1e3 * took_s:.2f} ms instead of {1e3 * parted_s:.2f}"
        near = _SAME_IN_16_BITS if self._captures else _SAME
        if not math.isclose(float(found.norm), float(wanted.norm), rel_tol=near):
            told = f"its gradient is {float(found.norm):g}, not {float(wanted.norm):g}"
            self._settle(told, well=False)
        elif took_s >= parted_s:
            self._settle(f"that is no faster, {told}", well=False)
        else:
            self._compiled = compiled
            self._settle(told, well=True)

    def _settle(self, told: str, *, well: bool) -> None:
        """Ends the attempt."""
        self._wanted = False
        self.close()
        config, how = self._parts.config, "captured" if self._captures else "compiled"
        asked = config.graph if self._captures else config.compile
        level = logging.INFO if well or asked is not True else logging.WARNING
        log.log(level, "the optimiser step is %s: %s", how if well else f"not {how}", told)

    def close(self) -> None:
        """Ends what is at work beside us."""
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None
