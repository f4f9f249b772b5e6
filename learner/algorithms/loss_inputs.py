"""The inputs and results of a loss. Shapes as in losses.py: T steps, B columns, time first."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from headrace.learner.config import AlgorithmConfig
from headrace.learner.models.distribution import Distribution
from headrace.learner.models.model import Output
from headrace.learner.spaces import DEAD


class LossBatch(NamedTuple):
    """Holds what the samplers recorded, [T, B] each; an action may have an axis of its own."""

    action: Tensor
    logp: Tensor  # float32, of the action under the policy that chose it
    reward: Tensor  # float32
    flags: Tensor  # uint8, the bits of headrace.learner.spaces
    targets: "Targets | None" = None  # ppo: made once for all uses of a batch

    @property
    def recorded(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.action, self.logp, self.reward, self.flags

    @property
    def live(self) -> Tensor:
        """Returns 1 for each step, and 0 for a dead one, which only resets."""
        return ((self.flags & DEAD) == 0).float()


class Targets(NamedTuple):
    """Holds targets without gradient, and the values from which they were made."""

    vs: Tensor
    advantages: Tensor
    values: Tensor


class Loss(NamedTuple):
    total: Tensor  # scalar, to be differentiated
    stats: dict[str, Tensor]  # detached scalars; their mean over the ranks is the global mean
    vs: Tensor  # [T, B] the value targets
    value: Tensor  # [T, B] detached, what the network said instead
    share: Tensor  # [T, B] of each step in the whole batch


class LossTerms(NamedTuple):
    """Holds a loss's unweighted parts, [T, B] each; dead steps may hold anything finite."""

    policy: Tensor
    value: Tensor
    entropy: Tensor
    vs: Tensor  # what the values should have been
    kl: Tensor | None = None  # to the target network, when it is part of the loss


class Coefficients(NamedTuple):
    """Holds the coefficients that change in the course of a run: numbers of the host, or of the
    device where it is not to wait for them. Of a population clip and entropy_coef are [T, B]."""

    clip: float | Tensor
    entropy_coef: float | Tensor
    kl_coef: float | Tensor
    # Of the returns, where the model normalises them: one unit of the losses.
    std: float | Tensor = 1.0
    # Mean square of the advantages until now; None = there were none.
    advantage_square: float | Tensor | None = None


def _alone(sums: Tensor) -> Tensor:
    return sums


@dataclass(frozen=True, slots=True, kw_only=True)
class LossNorm:
    """Scales a rank's loss to its share of the whole batch's."""

    # Live steps of the batch on all ranks, at least 1; those of a population: by_policy().
    steps: float | Tensor
    world: int = 1  # ranks
    reduce: Callable[[Tensor], Tensor] = _alone  # adds up a tensor over the ranks
    policy: Tensor | None = None  # [T, B] of a population: whose each step is

    @property
    def scale(self) -> float | Tensor:
        return self.world / self.steps


@dataclass(frozen=True, kw_only=True)
class LossInputs:
    """Holds all that a loss is computed from."""

    config: AlgorithmConfig
    coefs: Coefficients
    distribution: Distribution  # reads the parameters of both outputs
    output: Output
    batch: LossBatch
    target: Output | None = None  # appo: of its target network
    norm: LossNorm

    @functools.cached_property
    def live(self) -> Tensor:
        """Returns those of the batch; computed once, for every term asks for them."""
        return self.batch.live


LossFn = Callable[[LossInputs], Loss]
