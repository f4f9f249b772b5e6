"""The losses: pure functions of `LossInputs`. A new algorithm is a new function here.

Every term is a sum over the live steps of this rank times `world / steps`, with the live steps of
all ranks in the denominator. DDP then averages the ranks' gradients, and the result is the gradient
of the mean over all live steps, however unevenly they fell on the ranks.

Shapes: T steps, B columns, time first. For impala and appo the network's output has T+1 rows, the
last one for its value only. ppo takes steps in any shape: its targets were made before.
"""

import math
from typing import Any

import torch
from torch import Tensor

from headrace.learner.algorithms import advantages as units
from headrace.learner.algorithms import vtrace
from headrace.learner.algorithms.loss_inputs import Loss, LossFn, LossInputs, LossTerms
from headrace.learner.config import AlgorithmConfig
from headrace.learner.models.gradient_clamps import bounded_exp
from headrace.learner.spaces import TERMINATED, TRUNCATED

# appo: how far (behaviour / target) may weigh a step, as in IMPACT (Luo et al., 2020).
_MAX_BEHAVIOUR_WEIGHT = 2.0
# e^20 is far outside every clip, and far below the overflow that would turn a zero gradient to NaN.
_MAX_LOG_RATIO = 20.0
# A KL weight that adapts itself comes back from these; from 0 it could not.
_LEAST_KL_COEF, _MOST_KL_COEF = 1e-4, 1e4


def impala(given: LossInputs) -> Loss:
    """Computes the policy gradient with V-trace corrected advantages; has no target network."""
    assert given.target is None, "impala has no target network"
    output, batch = given.output, given.batch
    logp, entropy = given.distribution.log_prob_and_entropy(output.params[:-1], batch.action)
    log_rhos = logp.detach() - batch.logp
    vs, raw = value_targets(given, log_rhos, output.value.detach())
    advantages, told = units.scaled(given, raw)
    drifted = drifted_steps(given, logp.detach(), advantages)
    terms = LossTerms(
        policy=policy_gradient(logp, advantages).masked_fill(drifted, 0.0),
        value=value_error(output.value[:-1], vs, given.coefs.std),
        entropy=entropy,
        vs=vs,
    )
    loss = _weighted_sum(given, terms, log_rhos)
    loss.stats.update(told, drift_fraction=_share(given, drifted))
    return loss


def appo(given: LossInputs) -> Loss:
    """Computes the surrogate clipped around a target network, which makes V-trace's targets."""
    assert given.target is not None, "appo needs the output of its target network"
    output, batch, coefs = given.output, given.batch, given.coefs
    logp, entropy = given.distribution.log_prob_and_entropy(output.params[:-1], batch.action)
    target_params = given.target.params[:-1].detach()
    target_logp = given.distribution.log_prob(target_params, batch.action)
    vs, raw = value_targets(given, target_logp - batch.logp, given.target.value.detach())
    advantages, told = units.scaled(given, raw)
    drifted = drifted_steps(given, logp.detach(), advantages)
    ratio = surrogate_ratio(logp, target_logp=target_logp, behaviour_logp=batch.logp)
    kl = given.distribution.kl(target_params, output.params[:-1]) if given.config.kl_coef else None
    terms = LossTerms(
        policy=clipped_surrogate(ratio, advantages, coefs.clip).masked_fill(drifted, 0.0),
        value=value_error(output.value[:-1], vs, coefs.std),
        entropy=entropy,
        vs=vs,
        kl=kl,
    )
    loss = _weighted_sum(given, terms, logp.detach() - batch.logp)
    drift, clipped = _share(given, drifted), _clipped(given, ratio)
    loss.stats.update(told, clip_fraction=clipped, drift_fraction=drift)
    return loss


def ppo(given: LossInputs) -> Loss:
    """Computes the surrogate clipped around the policy that acted; targets were made before."""
    output, batch, coefs = given.output, given.batch, given.coefs
    assert given.target is None and batch.targets is not None, (
        "ppo has targets, and no target network"
    )
    vs, advantages, old = batch.targets
    logp, entropy = given.distribution.log_prob_and_entropy(output.params, batch.action)
    log_ratio = logp - batch.logp
    ratio = bounded_exp(log_ratio, _MAX_LOG_RATIO)
    value = value_error(output.value, vs, coefs.std)
    value_clip = given.config.value_clip
    if value_clip:
        moved = (output.value - old).clamp(-value_clip, value_clip)
        value = torch.maximum(value, value_error(old + moved, vs, coefs.std))
    terms = LossTerms(clipped_surrogate(ratio, advantages, coefs.clip), value, entropy, vs)
    loss = _weighted_sum(given, terms, log_ratio.detach())
    loss.stats["clip_fraction"] = _clipped(given, ratio)
    return loss


LOSSES: dict[str, LossFn] = {"impala": impala, "appo": appo, "ppo": ppo}


def policy_gradient(logp: Tensor, advantages: Tensor) -> Tensor:
    """Returns a loss whose gradient raises the log-prob of better actions than expected."""
    return -logp * advantages


def value_error(value: Tensor, target: Tensor, std: float | Tensor = 1.0) -> Tensor:
    return 0.5 * ((target - value) / std).square()


def clipped_surrogate(ratio: Tensor, advantages: Tensor, clip: float | Tensor) -> Tensor:
    """Returns PPO's pessimistic loss: no reward for moving the ratio further than `clip` from 1."""
    low: Any = 1 - clip
    high: Any = 1 + clip
    bounded = ratio.clamp(low, high)
    return -torch.minimum(ratio * advantages, bounded * advantages)


def drifted_steps(given: LossInputs, logp: Tensor, advantages: Tensor) -> Tensor:
    """Returns the steps that are to train the policy no further: since its action was played, its
    probability has moved beyond algorithm.drift_limit in the direction of its advantage.

    Late data asks for the same move again and again, until data of the moved policy comes: so lag
    makes a policy certain too early. A difference, as DPPO (arXiv 2602.04879) masks by, lets rare
    actions go where a bound on the ratio would not. Of a density, which has no bound, counts the
    share by which it has moved: 1/2 where it has doubled or halved.
    """
    limit, behaviour = given.config.drift_limit, given.batch.logp
    if not limit:
        return torch.zeros_like(logp, dtype=torch.bool)
    largest = torch.maximum(logp, behaviour) if given.distribution.density else 0.0
    moved = (logp - largest).exp() - (behaviour - largest).exp()
    return (moved.abs() > limit) & (moved * advantages > 0)


def surrogate_ratio(logp: Tensor, *, target_logp: Tensor, behaviour_logp: Tensor) -> Tensor:
    """Returns policy / target, written as policy / behaviour x min(behaviour / target, 2).

    Taken together that is policy / max(target, behaviour / 2), one exponential.
    """
    floor = behaviour_logp - math.log(_MAX_BEHAVIOUR_WEIGHT)
    return bounded_exp(logp - torch.maximum(target_logp, floor), _MAX_LOG_RATIO)


def adapted_kl_coef(coef: float, kl: float, wanted: float) -> float:
    """Returns the next weight of the KL term, from the `kl` that was measured."""
    if kl > 2 * wanted:
        coef *= 1.5
    elif kl < wanted / 2:
        coef *= 0.5
    return min(max(coef, _LEAST_KL_COEF), _MOST_KL_COEF)


@torch.no_grad()
def value_targets(given: LossInputs, log_rhos: Tensor, values: Tensor) -> vtrace.VTrace:
    """Returns V-trace value targets, and advantages in the rewards' units."""
    config, batch = given.config, given.batch
    assert config.gamma != "auto" and config.trace != "auto", "settled before it trains"
    return vtrace.targets(
        log_rhos=log_rhos,
        rewards=scaled_rewards(config, batch.reward),
        values=values,
        discounts=((batch.flags & TERMINATED) == 0) * config.gamma,
        continues=((batch.flags & (TERMINATED | TRUNCATED)) == 0).float(),
        live=given.live,
        trace=config.trace,
        rho_clip=config.rho_clip,
        c_clip=config.c_clip,
        pg_rho_clip=config.pg_rho_clip,
    )


def scaled_rewards(config: AlgorithmConfig, reward: Tensor) -> Tensor:
    """Clips and scales rewards for the loss; reported returns stay as the environment gave them."""
    if config.reward_clip:
        reward = reward.clamp(-config.reward_clip, config.reward_clip)
    return reward * config.reward_scale


def _clipped(given: LossInputs, ratio: Tensor) -> Tensor:
    """Returns the share of live steps whose ratio is beyond the clip."""
    return _share(given, (ratio.detach() - 1).abs() > given.coefs.clip)


def _share(given: LossInputs, steps: Tensor) -> Tensor:
    """Returns the share of live steps that are these."""
    return (steps * given.live * given.norm.scale).sum()


def _weighted_sum(given: LossInputs, terms: LossTerms, log_ratio: Tensor) -> Loss:
    """Sums the weighted terms. `log_ratio`: of (policy / behaviour), without gradient."""
    coefs, live = given.coefs, given.live
    share = live * given.norm.scale
    log_ratio = log_ratio * live
    policy, value, entropy = ((term * share).sum() for term in terms[:3])
    bonus = (coefs.entropy_coef * terms.entropy * share).sum()
    total = policy + given.config.value_coef * value - bonus
    stats = {"policy_loss": policy, "value_loss": value, "entropy": entropy}
    if terms.kl is not None:
        stats["target_kl"] = (terms.kl * share).sum()
        total = total + coefs.kl_coef * stats["target_kl"]
    rho = bounded_exp(log_ratio, _MAX_LOG_RATIO)
    stats["rho_mean"] = (rho * share).sum()
    # Under the behaviour policy's actions this averages to KL(behaviour || policy); each sample of
    # it is at least 0, and it varies less than the plain mean of -log_ratio.
    stats["kl"] = ((rho - 1 - log_ratio) * share).sum()
    detached = {name: part.detach() for name, part in stats.items()}
    return Loss(total, detached, terms.vs, given.output.value[: len(terms.vs)].detach(), share)
