"""Adam for a population: each policy has its own count of steps, learning rate and clipped norm.

A policy that has not played is left as it is. Rows are worked on a few at a time, so that what is
read and written stays in the processor's cache.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from headrace.learner.models.population.population import FACTORS, Population

_ROWS_BYTES = 1 << 18  # of a gradient, worked on at once


class RowAdam(torch.optim.Optimizer):
    """Steps the rows of which there is a gradient."""

    def __init__(self, population: Population, *, lr: float, eps: float) -> None:
        super().__init__([population.weights], {"lr": lr, "betas": (0.9, 0.999), "eps": eps})
        self._factor = population.get_buffer(FACTORS["lr"])
        self._touched = population.touched

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        assert closure is None
        (group,) = self.param_groups
        (weights,) = group["params"]
        rows, gradient = rows_of(weights)
        moved = gradient.norm(dim=1) > 0  # else it is only seen in a step that trains nobody
        state = self.state[weights]
        if not state:
            state["step"] = weights.new_zeros(len(weights))
            state["exp_avg"] = torch.zeros_like(weights)
            state["exp_avg_sq"] = torch.zeros_like(weights)
        counts, first, second = state["step"], state["exp_avg"], state["exp_avg_sq"]
        counts[rows[moved]] += 1
        self._touched[rows.cpu()] = True
        (mean_decay, square_decay), eps = group["betas"], group["eps"]
        many = max(1, _ROWS_BYTES // (weights.element_size() * weights.shape[1]))
        for at in range(0, len(rows), many):
            own = moved[at : at + many]
            here, there = rows[at : at + many][own], gradient[at : at + many][own]
            steps = counts[here].unsqueeze(1)
            mean, square = first[here], second[here]
            mean.lerp_(there, 1 - mean_decay)
            square.mul_(square_decay).addcmul_(there, there, value=1 - square_decay)
            first[here], second[here] = mean, square
            rate = group["lr"] * self._factor[here].unsqueeze(1) / (1 - mean_decay**steps)
            square.div_(1 - square_decay**steps).sqrt_().add_(eps)
            weights.index_add_(0, here, mean.mul_(rate).div_(square), alpha=-1)


def rows_of(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the policies that have a gradient, and it."""
    assert weights.grad is not None
    return weights.grad._indices()[0], weights.grad._values()


@torch.no_grad()
def clip_rows(weights: Tensor, largest: float, largest_value: float) -> Tensor:
    """Bounds each policy's gradient; returns the root of their mean square norm before that."""
    _, gradient = rows_of(weights)
    norms = gradient.norm(dim=1)
    if largest_value:
        gradient.clamp_(-largest_value, largest_value)
    bounded = gradient.norm(dim=1) if largest_value else norms
    if largest < float("inf"):
        gradient.mul_((largest / (bounded + 1e-6)).clamp(max=1.0).unsqueeze(1))
    total: Tensor = norms.square().mean().sqrt()
    return total
