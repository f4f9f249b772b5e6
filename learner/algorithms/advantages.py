"""Brings advantages into the losses' units: of one batch, of a running mean square, or of returns.

A small batch of few episodes has one thing in common: all of it may be better or worse than was
expected. Subtracting its mean takes away just that, and dividing by its own deviation gives the
noise of a batch in which nothing happens the weight of one in which much does. So a running scale
takes no mean, and moves by a hundredth in each optimiser step. Where actions are numbers it is no
clear gain: docs/benchmarks.md has the figures.
"""

import torch
from torch import Tensor

from headrace.learner.algorithms.loss_inputs import LossInputs, LossNorm
from headrace.learner.config import AlgorithmConfig
from headrace.learner.models.distribution import Distribution
from headrace.learner.models.normalise import moments

_EPS = 1e-8
_SLOWEST = 0.01  # a step's share of the running mean square, once there were many
SQUARE = "advantage_square"


@torch.no_grad()
def scaled(given: LossInputs, advantages: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns advantages in the losses' units, and their mean square where it is kept."""
    how = given.config.normalise_advantages
    if keeps_square(given.config, given.distribution):
        part = (advantages.double() * given.live).square().sum() * given.norm.scale
        known = given.coefs.advantage_square
        square = given.norm.reduce(part.clone()) / given.norm.world if known is None else known
        return advantages / (square**0.5 + _EPS), {SQUARE: part}
    if how:
        return normalised(advantages, given.live, given.norm), {}
    return advantages / given.coefs.std, {}


def keeps_square(config: AlgorithmConfig, distribution: Distribution) -> bool:
    """Tells whether the advantages' running mean square is their unit."""
    how = config.normalise_advantages
    return how == "running" or (how == "auto" and not distribution.density)


def normalised(advantages: Tensor, live: Tensor, norm: LossNorm) -> Tensor:
    """Returns advantages of zero mean and unit variance over all ranks' live steps; dead ones are
    0.

    In float64, so that the order in which ranks and steps are added does not show.
    """
    count, mean, squares = moments(advantages.unsqueeze(-1), live, norm.reduce)
    spread = (squares / count.clamp(min=1)).sqrt()  # a batch may have no live step at all
    return (live * (advantages.double() - mean) / (spread + _EPS)).to(advantages.dtype)


def share_of(steps: int) -> float:
    """Returns the share of optimiser step number `steps` in the running mean square."""
    return max(_SLOWEST, 1 / steps)


def moved(before: float | None, square: float, steps: int) -> float:
    """Returns the running mean square after an optimiser step, which is number `steps`."""
    share = 1.0 if before is None else share_of(steps)
    return (before or 0.0) * (1 - share) + square * share
