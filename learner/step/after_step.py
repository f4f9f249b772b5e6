"""Follows optimiser steps: moves the target network, adapts coefficients, updates the running
statistics of observations and returns, and lets policies of a population go on as better ones."""

import logging

import numpy as np
import torch
from torch import Tensor

from headrace.learner.algorithms import optimiser_step
from headrace.learner.algorithms.advantages import SQUARE, moved
from headrace.learner.algorithms.batch_uses import Sample
from headrace.learner.algorithms.loss_inputs import Loss
from headrace.learner.algorithms.losses import adapted_kl_coef
from headrace.learner.config import number
from headrace.learner.models.gaussians import LOG_STD
from headrace.learner.models.normalise import moments
from headrace.learner.models.population.population import Population
from headrace.learner.sharding.parts import own_part
from headrace.learner.train_parts import TrainParts

log = logging.getLogger(__name__)

_CHANGE = 1.25  # a factor of a policy that goes on as another is multiplied or divided by it


def after_step(parts: TrainParts, loss: Loss) -> bool:
    """Does what follows every optimiser step; True = the batch has moved the policy far enough."""
    progress, algorithm, model = parts.progress, parts.algorithm, parts.model
    progress.learner_steps += 1
    if (part := loss.stats.get(SQUARE)) is not None:
        square = parts.ranks.mean(part)
        progress.advantage_square = moved(progress.advantage_square, square, progress.learner_steps)
    if model.log_std is not None:
        own_part(model.log_std).clamp_(*LOG_STD)  # so that its way back is never long
    if moves_target(parts):
        # Measured where the target is oldest: just after a move the two are equal.
        if algorithm.kl_target and "target_kl" in loss.stats:
            adapt_kl(parts, parts.ranks.mean(loss.stats["target_kl"]))
        move_target(parts)
    if algorithm.kl_stop and algorithm.name == "ppo":
        return parts.ranks.mean(loss.stats["kl"]) > algorithm.kl_stop
    return False


def moves_target(parts: TrainParts) -> bool:
    """Tells whether the target network moves after this optimiser step."""
    every = number(parts.algorithm.target_interval)
    return parts.target is not None and parts.progress.learner_steps % every == 0


def move_target(parts: TrainParts) -> None:
    """Moves the target network towards the model."""
    assert parts.target is not None
    optimiser_step.update_target(parts.target, parts.model, parts.algorithm.target_rate)


def adapt_kl(parts: TrainParts, kl: float) -> None:
    """Adapts the weight of the KL term to what was measured."""
    progress, algorithm = parts.progress, parts.algorithm
    coef = algorithm.kl_coef if progress.kl_coef is None else progress.kl_coef
    progress.kl_coef = adapted_kl_coef(coef, kl, algorithm.kl_target)


def after_batch(parts: TrainParts, fresh: Sample, vs: Tensor | None) -> None:
    """Does what follows all steps of a batch."""
    update_statistics(parts, fresh, vs)
    if parts.config.replace_every and isinstance(parts.model, Population):
        since = parts.progress.trained_steps - parts.progress.population.replaced_at
        if since >= parts.config.replace_every * len(parts.model.weights):
            replace_worst(parts, parts.model)


def replace_worst(parts: TrainParts, population: Population) -> None:
    """Lets the worst policies go on as better ones, with other factors."""
    at, target = parts.progress.trained_steps, parts.target
    rng = np.random.default_rng((parts.seed, at))
    pairs = parts.progress.population.replace(rng, at=at)
    for policy, better in pairs:
        population.take_over(policy, better)
        if isinstance(target, Population):
            target.take_over(policy, better)
        factors = {name: _CHANGE ** rng.choice((-1, 1)) for name in sorted(parts.config.spread)}
        population.multiply(policy, factors)
    log.info("%d of %d policies go on as better ones", len(pairs), len(population.weights))


@torch.no_grad()
def update_statistics(
    parts: TrainParts, fresh: Sample, vs: Tensor | None, live: Tensor | None = None
) -> None:
    """Updates them once for each batch, only from what is new in it, however often it was used.
    `live`: of its steps those that count; None = all that are."""
    returns = parts.model.returns
    live = fresh.loss.live if live is None else live
    for normaliser in (parts.model.normaliser, parts.model.images):
        if normaliser is not None:
            normaliser.update(fresh.obs, live, parts.ranks.total)
    if returns is not None and vs is not None:
        new = vs[:, : live.shape[1]].unsqueeze(-1)
        returns.merge(moments(new, live, parts.ranks.total))
