"""The losses: pure functions of one signature. A new algorithm is a new function here.

Every term is a sum over the live steps of this rank times `world / steps`, with the live steps of
all ranks in the denominator. DDP then averages the ranks' gradients, and the result is the gradient
of the mean over all live steps, however unevenly they fell on the ranks.

Shapes: T steps, B columns, A actions, time first; the network's output has T+1 rows, the last one
for its value only.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from learner import vtrace
from learner.config import AlgorithmConfig
from learner.models import categorical
from learner.models.model import Output
from learner.spaces import DEAD, TERMINATED, TRUNCATED

# appo: how far (behaviour / target) may weigh a step, as in IMPACT (Luo et al., 2020).
_MAX_BEHAVIOUR_WEIGHT = 2.0
# e^20 is far outside every clip, and far below the overflow that would turn a zero gradient to NaN.
_MAX_LOG_RATIO = 20.0


class LossBatch(NamedTuple):
    """What the samplers recorded, [T, B] each."""

    action: Tensor  # int64
    logp: Tensor  # float32, of the action under the policy that chose it
    reward: Tensor  # float32
    flags: Tensor  # uint8, the bits of learner.spaces


class Loss(NamedTuple):
    total: Tensor  # scalar, to be differentiated
    stats: dict[str, Tensor]  # detached scalars; their mean over the ranks is the global mean


class Terms(NamedTuple):
    """A loss's parts before they are weighed, [T, B] each; dead steps may hold anything finite."""

    policy: Tensor
    value: Tensor
    entropy: Tensor
    kl: Tensor | None = None  # to the target network, when it is part of the loss


def _alone(sums: Tensor) -> Tensor:
    return sums


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """What makes a rank's loss a share of the whole batch's."""

    steps: float | Tensor  # live steps of this batch on all ranks, at least 1
    world: int = 1  # ranks
    reduce: Callable[[Tensor], Tensor] = _alone  # adds up a tensor over the ranks

    @property
    def scale(self) -> float | Tensor:
        return self.world / self.steps


class LossFn(Protocol):
    def __call__(
        self,
        config: AlgorithmConfig,
        *,
        output: Output,
        batch: LossBatch,
        target: Output | None,
        norm: Norm,
    ) -> Loss: ...


def impala(
    config: AlgorithmConfig,
    *,
    output: Output,
    batch: LossBatch,
    target: Output | None,
    norm: Norm,
) -> Loss:
    """Policy gradient with V-trace corrected advantages; has no target network."""
    assert target is None, "impala has no target network"
    logp, entropy = categorical.log_prob_and_entropy(output.params[:-1], batch.action)
    live = _live(batch.flags)
    log_rhos = logp.detach() - batch.logp
    vs, advantages = _targets(config, batch, log_rhos, output.value.detach(), live, norm)
    terms = Terms(
        policy=policy_gradient(logp, advantages),
        value=value_error(output.value[:-1], vs),
        entropy=entropy,
    )
    return _weigh(config, terms, log_rhos, live, norm)


def appo(
    config: AlgorithmConfig,
    *,
    output: Output,
    batch: LossBatch,
    target: Output | None,
    norm: Norm,
) -> Loss:
    """Clipped surrogate around a target network that also makes the V-trace targets."""
    assert target is not None, "appo needs the output of its target network"
    logp, entropy = categorical.log_prob_and_entropy(output.params[:-1], batch.action)
    target_logits = target.params[:-1].detach()
    target_logp = categorical.log_prob(target_logits, batch.action)
    live = _live(batch.flags)
    log_rhos = target_logp - batch.logp
    vs, advantages = _targets(config, batch, log_rhos, target.value.detach(), live, norm)
    ratio = surrogate_ratio(logp, target_logp=target_logp, behaviour_logp=batch.logp)
    terms = Terms(
        policy=clipped_surrogate(ratio, advantages, config.clip),
        value=value_error(output.value[:-1], vs),
        entropy=entropy,
        kl=categorical.kl(target_logits, output.params[:-1]) if config.kl_coef else None,
    )
    loss = _weigh(config, terms, logp.detach() - batch.logp, live, norm)
    clipped = (ratio.detach() - 1).abs() > config.clip
    loss.stats["clip_fraction"] = (clipped * live).sum() * norm.scale
    return loss


LOSSES: dict[str, LossFn] = {"impala": impala, "appo": appo}


def policy_gradient(logp: Tensor, advantages: Tensor) -> Tensor:
    """Its gradient raises the log-prob of what went better than expected."""
    return -logp * advantages


def value_error(value: Tensor, target: Tensor) -> Tensor:
    return 0.5 * (target - value).square()


def clipped_surrogate(ratio: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """PPO's pessimistic loss: no reward for moving the ratio further than `clip` from 1."""
    bounded = ratio.clamp(1 - clip, 1 + clip)
    return -torch.minimum(ratio * advantages, bounded * advantages)


def surrogate_ratio(logp: Tensor, *, target_logp: Tensor, behaviour_logp: Tensor) -> Tensor:
    """policy / target, written as policy / behaviour x min(behaviour / target, 2).

    Taken together that is policy / max(target, behaviour / 2), one exponential.
    """
    floor = behaviour_logp - math.log(_MAX_BEHAVIOUR_WEIGHT)
    log_ratio = logp - torch.maximum(target_logp, floor)
    return log_ratio.clamp(max=_MAX_LOG_RATIO).exp()


def _live(flags: Tensor) -> Tensor:
    return ((flags & DEAD) == 0).float()


@torch.no_grad()
def _targets(
    config: AlgorithmConfig,
    batch: LossBatch,
    log_rhos: Tensor,
    values: Tensor,
    live: Tensor,
    norm: Norm,
) -> vtrace.VTrace:
    vs, advantages = vtrace.targets(
        log_rhos=log_rhos,
        rewards=_rewards(config, batch.reward),
        values=values,
        discounts=((batch.flags & TERMINATED) == 0) * config.gamma,
        continues=((batch.flags & (TERMINATED | TRUNCATED)) == 0).float(),
        live=live,
        trace=config.trace,
        rho_clip=config.rho_clip,
        c_clip=config.c_clip,
        pg_rho_clip=config.pg_rho_clip,
    )
    if config.normalise_advantages:
        advantages = normalise(advantages, live, norm)
    return vtrace.VTrace(vs, advantages)


def _rewards(config: AlgorithmConfig, reward: Tensor) -> Tensor:
    """As the loss sees them; returns that are reported stay as the environment gave them."""
    if config.reward_clip:
        reward = reward.clamp(-config.reward_clip, config.reward_clip)
    return reward * config.reward_scale


def normalise(advantages: Tensor, live: Tensor, norm: Norm) -> Tensor:
    """Zero mean and unit variance over the live steps of all ranks; dead steps become 0.

    In float64, so that the order in which ranks and steps are added does not show.
    """
    wide = advantages.double() * live
    sums = norm.reduce(torch.stack([wide.sum(), wide.square().sum(), live.double().sum()]))
    total, squares, count = sums.unbind()
    mean = total / count
    spread = (squares / count - mean.square()).clamp(min=0).sqrt()
    return (live * (wide - mean) / (spread + 1e-8)).to(advantages.dtype)


def _weigh(
    config: AlgorithmConfig, terms: Terms, log_ratio: Tensor, live: Tensor, norm: Norm
) -> Loss:
    """`log_ratio`: of (policy / behaviour) at each action, without gradient."""
    share = live * norm.scale
    policy = (terms.policy * share).sum()
    value = (terms.value * share).sum()
    entropy = (terms.entropy * share).sum()
    total = policy + config.value_coef * value - config.entropy_coef * entropy
    stats = {"policy_loss": policy, "value_loss": value, "entropy": entropy}
    if terms.kl is not None:
        stats["target_kl"] = (terms.kl * share).sum()
        total = total + config.kl_coef * stats["target_kl"]
    rho = log_ratio.exp()
    stats["rho_mean"] = (rho * share).sum()
    # Under the behaviour policy's actions this averages to KL(behaviour || policy); each sample of
    # it is at least 0, and it varies less than the plain mean of -log_ratio.
    stats["kl"] = ((rho - 1 - log_ratio) * share).sum()
    return Loss(total, {name: part.detach() for name, part in stats.items()})
