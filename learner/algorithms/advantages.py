"""Brings advantages into the losses' units: of one batch, of a running mean square, or of returns.

A small batch of few episodes has one thing in common: all of it may be better or worse than was
expected. Subtracting its mean takes away just that, and dividing by its own deviation gives the
noise of a batch in which nothing happens the weight of one in which much does. So a running scale
takes no mean, and moves by a hundredth in each optimiser step. Only where actions are numbers a
mean below 0 is taken away: a batch that was worse throughout would drive the density away from all
that was played, so the deviations up, without an end. docs/benchmarks.md has the figures.
"""

import torch
from torch import Tensor

from headrace.learner.algorithms.loss_inputs import LossInputs, LossNorm
from headrace.learner.config import AlgorithmConfig
from headrace.learner.models.normalise import moments

_EPS = 1e-8
_SLOWEST = 0.01  # a step's share of the running mean square, once there were many
SQUARE = "advantage_square"


@torch.no_grad()
def scaled(given: LossInputs, advantages: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns advantages in the losses' units, and their mean square where it is kept."""
    how = given.config.normalise_advantages
    if keeps_square(given.config):
        part = _mean((advantages.double() * given.live).square(), given.norm)
        known = given.coefs.advantage_square
        square = _over_ranks(part, given.norm) if known is None else known
        if given.distribution.density:
            mean = _over_ranks(_mean(advantages.double() * given.live, given.norm), given.norm)
            advantages = advantages - mean.clamp(max=0.0).to(advantages.dtype)
        return advantages / (square**0.5 + _EPS), {SQUARE: part}
    if how and given.norm.policy is not None:
        return normalised_by_policy(advantages, given.live, given.norm.policy), {}
    if how:
        return normalised(advantages, given.live, given.norm), {}
    return advantages / given.coefs.std, {}


def keeps_square(config: AlgorithmConfig) -> bool:
    """Tells whether the advantages' running mean square is their unit."""
    return config.normalise_advantages == "running"


def _mean(of: Tensor, norm: LossNorm) -> Tensor:
    """Returns the part of a rank in a mean over live steps; its mean over ranks is the mean."""
    return (of * norm.scale).sum()


def _over_ranks(part: Tensor, norm: LossNorm) -> Tensor:
    return norm.reduce(part.clone()) / norm.world


def normalised(advantages: Tensor, live: Tensor, norm: LossNorm) -> Tensor:
    """Returns advantages of zero mean and unit variance over all ranks' live steps; dead ones are
    0.

    In float64, so that the order in which ranks and steps are added does not show.
    """
    count, mean, squares = moments(advantages.unsqueeze(-1), live, norm.reduce)
    spread = (squares / count.clamp(min=1)).sqrt()  # a batch may have no live step at all
    return (live * (advantages.double() - mean) / (spread + _EPS)).to(advantages.dtype)


def normalised_by_policy(advantages: Tensor, live: Tensor, policy: Tensor) -> Tensor:
    """Does the same for each policy of a population, over its own live steps."""
    whose, wide = policy.flatten(), live.double().flatten()
    counts = torch.bincount(whose, wide).clamp(min=1)
    mean = torch.bincount(whose, wide * advantages.flatten()) / counts
    away = wide * (advantages.flatten() - mean[whose])
    spread = (torch.bincount(whose, away.square()) / counts).sqrt()
    return (away / (spread[whose] + _EPS)).to(advantages.dtype).view_as(advantages)


def share_of(steps: int) -> float:
    """Returns the share of optimiser step number `steps` in the running mean square."""
    return max(_SLOWEST, 1 / steps)


def moved(before: float | None, square: float, steps: int) -> float:
    """Returns the running mean square after an optimiser step, which is number `steps`."""
    share = 1.0 if before is None else share_of(steps)
    return (before or 0.0) * (1 - share) + square * share
