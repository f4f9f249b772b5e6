"""The losses: pure functions of one signature. A new algorithm is a new function here.

Every term is a sum over the live steps of this rank times `world / steps`, with the live steps of
all ranks in the denominator. DDP then averages the ranks' gradients, and the result is the gradient
of the mean over all live steps, however unevenly they fell on the ranks.

Shapes: T steps, B columns, time first. For impala and appo the network's output has T+1 rows, the
last one for its value only. ppo takes steps in any shape: its targets were made before.
"""

import math

import msgspec
import torch
from torch import Tensor

from headrace.learner.algorithms import vtrace
from headrace.learner.algorithms.loss_inputs import (
    Coefficients,
    Loss,
    LossBatch,
    LossFn,
    LossNorm,
    LossTerms,
    Targets,
)
from headrace.learner.config import AlgorithmConfig
from headrace.learner.models.distribution import Distribution
from headrace.learner.models.gradient_clamps import bounded_exp
from headrace.learner.models.model import Output
from headrace.learner.models.normalise import moments
from headrace.learner.spaces import DEAD, TERMINATED, TRUNCATED

# appo: how far (behaviour / target) may weigh a step, as in IMPACT (Luo et al., 2020).
_MAX_BEHAVIOUR_WEIGHT = 2.0
# e^20 is far outside every clip, and far below the overflow that would turn a zero gradient to NaN.
_MAX_LOG_RATIO = 20.0
# An adapted_kl_coef weight comes back from these; from 0 it could not.
_LEAST_KL_COEF, _MOST_KL_COEF = 1e-4, 1e4


def impala(
    config: AlgorithmConfig,
    coefs: Coefficients,
    *,
    distribution: Distribution,
    output: Output,
    batch: LossBatch,
    target: Output | None,
    norm: LossNorm,
) -> Loss:
    """Computes the policy gradient with V-trace corrected advantages; has no target network."""
    assert target is None, "impala has no target network"
    logp, entropy = distribution.log_prob_and_entropy(output.params[:-1], batch.action)
    live = live_steps(batch.flags)
    log_rhos = logp.detach() - batch.logp
    vs, advantages = _vtrace_targets(
        config, coefs, batch, log_rhos, output.value.detach(), live, norm
    )
    terms = LossTerms(
        policy=policy_gradient(logp, advantages),
        value=value_error(output.value[:-1], vs, coefs.std),
        entropy=entropy,
        vs=vs,
    )
    return _weighted_sum(config, coefs, terms, log_rhos, live, norm)


def appo(
    config: AlgorithmConfig,
    coefs: Coefficients,
    *,
    distribution: Distribution,
    output: Output,
    batch: LossBatch,
    target: Output | None,
    norm: LossNorm,
) -> Loss:
    """Computes the surrogate clipped around a target network; that makes the V-trace targets
    too."""
    assert target is not None, "appo needs the output of its target network"
    logp, entropy = distribution.log_prob_and_entropy(output.params[:-1], batch.action)
    target_params = target.params[:-1].detach()
    target_logp = distribution.log_prob(target_params, batch.action)
    live = live_steps(batch.flags)
    log_rhos = target_logp - batch.logp
    vs, advantages = _vtrace_targets(
        config, coefs, batch, log_rhos, target.value.detach(), live, norm
    )
    ratio = surrogate_ratio(logp, target_logp=target_logp, behaviour_logp=batch.logp)
    terms = LossTerms(
        policy=clipped_surrogate(ratio, advantages, coefs.clip),
        value=value_error(output.value[:-1], vs, coefs.std),
        entropy=entropy,
        vs=vs,
        kl=distribution.kl(target_params, output.params[:-1]) if coefs.kl_coef else None,
    )
    loss = _weighted_sum(config, coefs, terms, logp.detach() - batch.logp, live, norm)
    loss.stats["clip_fraction"] = _clipped(ratio, coefs.clip, live, norm)
    return loss


def ppo(
    config: AlgorithmConfig,
    coefs: Coefficients,
    *,
    distribution: Distribution,
    output: Output,
    batch: LossBatch,
    target: Output | None,
    norm: LossNorm,
) -> Loss:
    """Computes the surrogate clipped around the policy that acted; targets were made before."""
    assert target is None and batch.targets is not None, "ppo has targets, and no target network"
    vs, advantages, old = batch.targets
    logp, entropy = distribution.log_prob_and_entropy(output.params, batch.action)
    live = live_steps(batch.flags)
    log_ratio = logp - batch.logp
    ratio = bounded_exp(log_ratio, _MAX_LOG_RATIO)
    value = value_error(output.value, vs, coefs.std)
    if config.value_clip:
        moved = (output.value - old).clamp(-config.value_clip, config.value_clip)
        value = torch.maximum(value, value_error(old + moved, vs, coefs.std))
    terms = LossTerms(clipped_surrogate(ratio, advantages, coefs.clip), value, entropy, vs)
    loss = _weighted_sum(config, coefs, terms, log_ratio.detach(), live, norm)
    loss.stats["clip_fraction"] = _clipped(ratio, coefs.clip, live, norm)
    return loss


LOSSES: dict[str, LossFn] = {"impala": impala, "appo": appo, "ppo": ppo}


@torch.no_grad()
def ppo_targets(
    config: AlgorithmConfig,
    coefs: Coefficients,
    *,
    output: Output,
    batch: LossBatch,
    norm: LossNorm,
) -> Targets:
    """Computes GAE, as V-trace of the policy that acted, which needs no correction."""
    live = live_steps(batch.flags)
    log_rhos = torch.zeros_like(batch.logp)
    config = msgspec.structs.replace(config, rho_clip=1.0, c_clip=1.0, pg_rho_clip=1.0)
    vs, advantages = _vtrace_targets(config, coefs, batch, log_rhos, output.value, live, norm)
    return Targets(vs, advantages, output.value[:-1])


def policy_gradient(logp: Tensor, advantages: Tensor) -> Tensor:
    """Returns a loss whose gradient raises the log-prob of better actions than expected."""
    return -logp * advantages


def value_error(value: Tensor, target: Tensor, std: float | Tensor = 1.0) -> Tensor:
    return 0.5 * ((target - value) / std).square()


def clipped_surrogate(ratio: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """Returns PPO's pessimistic loss: no reward for moving the ratio further than `clip` from 1."""
    bounded = ratio.clamp(1 - clip, 1 + clip)
    return -torch.minimum(ratio * advantages, bounded * advantages)


def surrogate_ratio(logp: Tensor, *, target_logp: Tensor, behaviour_logp: Tensor) -> Tensor:
    """Returns policy / target, written as policy / behaviour x min(behaviour / target, 2).

    Taken together that is policy / max(target, behaviour / 2), one exponential.
    """
    floor = behaviour_logp - math.log(_MAX_BEHAVIOUR_WEIGHT)
    return bounded_exp(logp - torch.maximum(target_logp, floor), _MAX_LOG_RATIO)


def live_steps(flags: Tensor) -> Tensor:
    """Returns 1 for each step, and 0 for a dead one, which only resets."""
    return ((flags & DEAD) == 0).float()


def adapted_kl_coef(coef: float, kl: float, wanted: float) -> float:
    """Returns the next weight of the KL term, as adapted_kl_coef to the measured `kl`."""
    if kl > 2 * wanted:
        coef *= 1.5
    elif kl < wanted / 2:
        coef *= 0.5
    return min(max(coef, _LEAST_KL_COEF), _MOST_KL_COEF)


def _clipped(ratio: Tensor, clip: float, live: Tensor, norm: LossNorm) -> Tensor:
    return (((ratio.detach() - 1).abs() > clip) * live).sum() * norm.scale


@torch.no_grad()
def _vtrace_targets(
    config: AlgorithmConfig,
    coefs: Coefficients,
    batch: LossBatch,
    log_rhos: Tensor,
    values: Tensor,
    live: Tensor,
    norm: LossNorm,
) -> vtrace.VTrace:
    """Returns V-trace value targets, and advantages in the losses' units."""
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
        return vtrace.VTrace(vs, normalise(advantages, live, norm))
    return vtrace.VTrace(vs, advantages / coefs.std)


def _rewards(config: AlgorithmConfig, reward: Tensor) -> Tensor:
    """Clips and scales rewards for the loss; reported returns stay as the environment gave them."""
    if config.reward_clip:
        reward = reward.clamp(-config.reward_clip, config.reward_clip)
    return reward * config.reward_scale


def normalise(advantages: Tensor, live: Tensor, norm: LossNorm) -> Tensor:
    """Returns advantages of zero mean and unit variance over all ranks' live steps; dead ones are
    0.

    In float64, so that the order in which ranks and steps are added does not show.
    """
    count, mean, squares = moments(advantages.unsqueeze(-1), live, norm.reduce)
    spread = (squares / count.clamp(min=1)).sqrt()  # a batch may have no live step at all
    return (live * (advantages.double() - mean) / (spread + 1e-8)).to(advantages.dtype)


def _weighted_sum(
    config: AlgorithmConfig,
    coefs: Coefficients,
    terms: LossTerms,
    log_ratio: Tensor,
    live: Tensor,
    norm: LossNorm,
) -> Loss:
    """Sums the weighted terms. `log_ratio`: of (policy / behaviour), without gradient."""
    share = live * norm.scale
    log_ratio = log_ratio * live
    policy = (terms.policy * share).sum()
    value = (terms.value * share).sum()
    entropy = (terms.entropy * share).sum()
    total = policy + config.value_coef * value - coefs.entropy_coef * entropy
    stats = {"policy_loss": policy, "value_loss": value, "entropy": entropy}
    if terms.kl is not None:
        stats["target_kl"] = (terms.kl * share).sum()
        total = total + coefs.kl_coef * stats["target_kl"]
    rho = bounded_exp(log_ratio, _MAX_LOG_RATIO)
    stats["rho_mean"] = (rho * share).sum()
    # Under the behaviour policy's actions this averages to KL(behaviour || policy); each sample of
    # it is at least 0, and it varies less than the plain mean of -log_ratio.
    stats["kl"] = ((rho - 1 - log_ratio) * share).sum()
    return Loss(total, {name: part.detach() for name, part in stats.items()}, terms.vs)
