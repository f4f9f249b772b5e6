"""Adam for a population: each policy has its own count of steps, learning rate and clipped norm.

A policy that has not played is left as it is. Each row goes to torch's fused kernel as a parameter
of its own, which reads and writes it once; those with one learning rate go in one call.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam

from headrace.learner.models.population.population import FACTORS, Population


class RowAdam(torch.optim.Optimizer):
    """Steps the rows of which there is a gradient."""

    def __init__(self, population: Population, *, lr: float, eps: float) -> None:
        super().__init__([population.weights], {"lr": lr, "betas": (0.9, 0.999), "eps": eps})
        self._factor = population.get_buffer(FACTORS["lr"])
        self._population = population

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        assert closure is None
        (group,) = self.param_groups
        (weights,) = group["params"]
        rows, gradient = rows_of(weights)
        state = self.state[weights]
        if not state:
            state["step"] = weights.new_zeros(len(weights))
            state["exp_avg"] = torch.zeros_like(weights)
            state["exp_avg_sq"] = torch.zeros_like(weights)
        self._population.touched[rows.cpu()] = True
        self._population.kept = (state["exp_avg"], state["exp_avg_sq"], state["step"])
        of_policy = (weights, *self._population.kept)
        for rate, moved in self._moved(rows, gradient).items():
            there, here = zip(*moved, strict=True)
            own, means, squares, steps = ([one[policy] for policy in here] for one in of_policy)
            adam(
                own, [gradient[at] for at in there], means, squares, [], steps,
                lr=group["lr"] * rate, beta1=group["betas"][0], beta2=group["betas"][1],
                eps=group["eps"], weight_decay=0.0, amsgrad=False, maximize=False, fused=True,
            )  # fmt: skip

    def _moved(self, rows: Tensor, gradient: Tensor) -> dict[float, list[tuple[int, int]]]:
        """Returns the places in the gradient, and the policies, by their factor of the learning
        rate; without those that are only seen in a step that trains nobody."""
        moved: dict[float, list[tuple[int, int]]] = defaultdict(list)
        factors, trained = self._factor[rows].tolist(), (gradient.norm(dim=1) > 0).tolist()
        for at, policy in enumerate(rows.tolist()):
            if trained[at]:
                moved[factors[at]].append((at, policy))
        return moved


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
