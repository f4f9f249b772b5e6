"""Makes one function of an optimiser step: network, loss, gradient, clip and Adam.

The parts of a step are small for most networks: launching each of them takes longer than what it
computes. So the step is recorded, operation by operation. On a CPU torch's compiler makes few loops
of them, on a GPU they are launched as one graph. The numbers are those of the parts, up to the
order in which they are added up.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from headrace.learner.algorithms import optimiser_step, own_loss
from headrace.learner.algorithms.batch_uses import Sample
from headrace.learner.algorithms.loss_inputs import Coefficients, Loss, LossBatch, LossNorm, Targets
from headrace.learner.config import AlgorithmConfig
from headrace.learner.learner_config import LearnerConfig
from headrace.learner.models.kernels.graph import Graph
from headrace.learner.models.model import Model
from headrace.learner.spaces import DEAD
from headrace.learner.step.sample_loss import inputs_of

_WARM, _TIMED = 5, 20  # steps of a trial


class Stepped(NamedTuple):
    """Holds what an optimiser step gave."""

    loss: Loss
    norm: Tensor  # of the gradient, before it was clipped
    finite: bool  # else nothing was changed


@dataclass(frozen=True, slots=True)
class StepParts:
    """Holds what a step depends on beside the sample: all that another process needs for it."""

    algorithm: AlgorithmConfig
    config: LearnerConfig
    model: Model
    target: Model | None
    device: torch.device


class FlatStep:
    """Is an optimiser step on samples of one size, as a function of tensors alone."""

    def __init__(
        self,
        parts: StepParts,
        optimiser: torch.optim.Optimizer,
        sample: Sample,
        *,
        most: int,
        squares: bool,
        fused: bool = False,
    ) -> None:
        """Takes parameters that have been stepped. `most`: steps in such a sample, if they are in
        no order; `squares`: there is a mean square of the advantages; `fused`: Adam is the one
        operation that it is in the parts, which a compiler cannot look into."""
        self._parts, self._squares, self._fused = parts, squares, fused
        (group,) = optimiser.param_groups
        self._betas, self._eps = group["betas"], group["eps"]
        named: dict[str, Tensor] = dict(parts.model.named_parameters())
        trained = {name: p for name, p in named.items() if p in optimiser.state}
        self._trained = list(trained)  # names
        held = {name: p for name, p in named.items() if name not in trained}
        held |= dict(parts.model.named_buffers())
        self._held = list(held)  # names of what the network reads, and the step does not train
        of_target = {} if parts.target is None else parts.target.state_dict(keep_vars=True)
        self._of_target = list(of_target)
        states = [optimiser.state[p] for p in trained.values()]
        self.counts = [state["step"] for state in states]
        # What is written (parameters, their first and second moments), then what is only read.
        self.tensors = [
            *(p.detach() for p in trained.values()),
            *(state["exp_avg"] for state in states),
            *(state["exp_avg_sq"] for state in states),
            *(tensor.detach() for tensor in (*held.values(), *of_target.values())),
        ]
        rows = sample.loss.flags.shape
        self.rows = torch.Size([most]) if len(rows) == 1 else rows
        self._obs = list(sample.obs)

    def fits(self, sample: Sample) -> bool:
        """Tells whether it can step on a sample: one of the same size, or fewer steps in no
        order."""
        rows = sample.loss.flags.shape
        return rows == self.rows or (len(rows) == len(self.rows) == 1 and rows[0] < self.rows[0])

    def inputs(self, sample: Sample, lr: float, coefs: Coefficients) -> list[Tensor]:
        """Returns what it is called with: the settings, then tensors that stay the same ones, then
        the sample's."""
        square = coefs.advantage_square if self._squares else None
        numbers = (lr, square or 0.0, coefs.clip, coefs.entropy_coef, coefs.kl_coef)
        settings = torch.tensor([float(number) for number in numbers], dtype=torch.float64)
        return [settings, self.counts[0], *self.tensors, *self._filled(sample)]

    def __call__(self, settings: Tensor, count: Tensor, *rest: Tensor) -> list[Tensor]:
        """Steps in place; returns the gradient's norm and what a Loss holds, in its order."""
        lr, square, *coefficients = settings.unbind()
        given = iter(rest)
        trained, means, squares, held, of_target = (
            list(itertools.islice(given, len(names)))
            for names in (*[self._trained] * 3, self._held, self._of_target)
        )
        sample = self._sample(list(given))
        leaves = [tensor.detach().requires_grad_() for tensor in trained]
        own = dict(zip((*self._trained, *self._held), (*leaves, *held), strict=True))
        std = 1.0 if self._parts.model.returns is None else own["returns.std"].float()
        # In the losses' own precision, lest these be computed in another.
        clip, entropy_coef, kl_coef = (number.float() for number in coefficients)
        coefs = Coefficients(clip, entropy_coef, kl_coef, std, square if self._squares else None)
        target = self._parts.target
        network = _Functional(self._parts.model, own)
        held_target = dict(zip(self._of_target, of_target, strict=True))
        target_network = None if target is None else _Functional(target, held_target)
        norm = LossNorm(steps=sample.loss.live.sum().clamp(min=1))
        with torch.enable_grad():
            inputs = inputs_of(self._parts, network, target_network, sample, norm, coefs)
            loss = own_loss.function(self._parts.algorithm)(inputs)
            gradients = torch.autograd.grad(loss.total, leaves)
        with torch.no_grad():
            for leaf, gradient in zip(leaves, gradients, strict=True):
                leaf.grad = gradient
            length = optimiser_step.clip_gradients(self._parts.config, leaves)
            clipped = [leaf.grad for leaf in leaves if leaf.grad is not None]
            adam = self._adam_at_once if self._fused else self._adam
            adam(lr, count, length.isfinite(), trained, clipped, means, squares)
        shown = (length, loss.total, loss.vs, loss.value, loss.share, *loss.stats.values())
        return [tensor.detach() for tensor in shown]

    def _adam(self, lr: Tensor, count: Tensor, finite: Tensor, *of_each: Sequence[Tensor]) -> None:
        """Steps as torch's Adam does: Kingma and Ba, 2015, algorithm 1. `of_each`: parameters,
        gradients, first and second moments."""
        first, second = self._betas
        steps = count.double() + 1  # of float32, 1 - 0.999 ** 1 would have few digits
        size, root = lr / (1 - first**steps), (1 - second**steps).sqrt()
        for parameter, gradient, mean, square in zip(*of_each, strict=True):
            new_mean = mean.lerp(gradient, 1 - first)
            new_square = square * second + gradient * gradient * (1 - second)
            moved = parameter - size * new_mean / (new_square.sqrt() / root + self._eps)
            for old, new in ((parameter, moved), (mean, new_mean), (square, new_square)):
                old.copy_(torch.where(finite, new, old))

    def _adam_at_once(
        self, lr: Tensor, count: Tensor, finite: Tensor, *of_each: Sequence[Tensor]
    ) -> None:
        """Steps by torch's own Adam, which heeds `found_inf` as of a GradScaler."""
        first, second = self._betas
        parameters, gradients, means, squares = map(list, of_each)
        torch._fused_adam_(
            parameters, gradients, means, squares, [], [count + 1] * len(parameters), lr=lr.float(),
            beta1=first, beta2=second, eps=self._eps, weight_decay=0.0, amsgrad=False,
            maximize=False, found_inf=(~finite).float(),
        )  # fmt: skip

    def _filled(self, sample: Sample) -> Iterator[Tensor]:
        """Yields the sample's tensors, with dead steps at the end where it is too short."""
        targets = () if sample.loss.targets is None else sample.loss.targets
        past = () if sample.memory is None or sample.begins is None else sample[1:3]
        tensors = [
            *(sample.obs[name] for name in self._obs), *past, *sample.loss.recorded, *targets
        ]  # fmt: skip
        lacks = self.rows.numel() - sample.loss.flags.numel()
        for tensor in tensors:
            if lacks:
                more = tensor[:1].expand(lacks, *tensor.shape[1:])
                dead = torch.full_like(more, DEAD) if tensor is sample.loss.flags else more
                yield torch.cat([tensor, dead])
            else:
                yield tensor.contiguous()

    def _sample(self, tensors: Sequence[Tensor]) -> Sample:
        given = iter(tensors)
        obs = dict(zip(self._obs, given, strict=False))
        memory, begins = (next(given), next(given)) if self._parts.model.memory else (None, None)
        action, logp, reward, flags, *targets = given
        batch = LossBatch(action, logp, reward, flags, Targets(*targets) if targets else None)
        return Sample(obs, memory, begins, batch, 0.0)


class OneGraph:
    """Launches a flat step as one graph, on copies of what is another with each step. On a CPU it
    is launched piece by piece."""

    def __init__(self, flat: FlatStep) -> None:
        self._flat = flat
        self._given: list[Tensor] = []  # where it finds what it is called with
        self._gave: list[Tensor] = []  # what it gives, until the next step
        self._numbers: Tensor  # those of them that are single numbers
        cuda = flat.tensors[0].is_cuda
        self._graph = Graph(self._run, capture=cuda, name="the optimiser step")

    def __call__(self, settings: Tensor, *rest: Tensor) -> list[Tensor]:
        """Steps; returns what the flat step does."""
        if not self._given:
            stay = 1 + len(self._flat.tensors)  # they, and the count
            moving = [tensor.clone() for tensor in rest[stay:]]
            self._given = [settings.to(rest[0].device, copy=True), *rest[:stay], *moving]
        for held, new in zip(self._given, (settings, *rest), strict=True):
            if held is not new:
                held.copy_(new, non_blocking=True)
        self._graph()
        numbers = iter(self._numbers.clone().unbind())
        return [tensor.clone() if tensor.dim() else next(numbers) for tensor in self._gave]

    def _run(self) -> None:
        self._gave = self._flat(*self._given)
        self._numbers = torch.stack([one.double() for one in self._gave if not one.dim()])


class CompiledStep:
    """Steps by a flat step that was compiled, or is one graph."""

    def __init__(
        self, flat: FlatStep, made: Callable[[], Callable[..., Any]], stats: Sequence[str]
    ) -> None:
        """Takes what returns a function that steps, for the tensors that this is called with at
        first."""
        self.fits = flat.fits
        self._flat = flat
        self._made = made
        self._run = made()
        self._stats = stats  # the names of the loss's figures

    @torch.no_grad()
    def __call__(self, sample: Sample, lr: float, coefs: Coefficients) -> Stepped:
        """Steps, unless the gradient is not finite."""
        norm, *given = self._run(*self._flat.inputs(sample, lr, coefs))
        total, vs, value, share, *stats = given
        finite = bool(norm.isfinite())
        if finite:
            torch._foreach_add_(self._flat.counts, 1)
        rows = slice(len(sample.loss.flags)) if vs.dim() == 1 else slice(None)
        named = dict(zip(self._stats, stats, strict=True))
        return Stepped(Loss(total, named, vs[rows], value[rows], share[rows]), norm, finite)

    def tried(self, sample: Sample, lr: float, coefs: Coefficients) -> tuple[Stepped, float]:
        """Returns what a step would give, and the seconds of a core that one takes. Changes
        nothing."""
        flat = self._flat
        tensors, counts = flat.tensors, flat.counts
        flat.tensors = [tensor.clone() for tensor in tensors]
        flat.counts = [count.clone() for count in counts]
        try:
            trial = CompiledStep(flat, self._made, self._stats)
            found = trial(sample, lr, coefs)
            for _ in range(_WARM):  # a graph is captured meanwhile
                trial(sample, lr, coefs)
            began = time.thread_time()
            for _ in range(_TIMED):
                trial(sample, lr, coefs)
            return found, (time.thread_time() - began) / _TIMED
        finally:
            flat.tensors, flat.counts = tensors, counts


class _Functional:
    """Calls a network with other tensors in the place of its own."""

    def __init__(self, network: nn.Module, tensors: dict[str, Tensor]) -> None:
        self._network, self._tensors = network, tensors

    def __call__(self, *given: Any) -> Any:
        return functional_call(self._network, self._tensors, given)
