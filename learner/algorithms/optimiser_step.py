"""The optimiser: made, stepped with clipped gradients; the target network."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from headrace.learner.learner_config import LearnerConfig
from headrace.learner.models.model import Model
from headrace.learner.models.population.population import Population
from headrace.learner.models.population.row_adam import RowAdam, clip_rows
from headrace.learner.sharding.parts import own_part, whole


def make_optimiser(config: LearnerConfig, model: nn.Module, *, lr: float) -> torch.optim.Optimizer:
    """Returns the run's optimiser, over all parameters."""
    if isinstance(model, Population):
        return RowAdam(model, lr=lr, eps=config.eps)
    parameters = list(model.parameters())
    if config.optimiser == "rmsprop":
        return torch.optim.RMSprop(
            parameters, lr=lr, eps=config.eps, alpha=config.decay, momentum=config.momentum,
            foreach=True,
        )  # fmt: skip
    return torch.optim.Adam(parameters, lr=lr, eps=config.eps, fused=True)


def clip_gradients(config: LearnerConfig, parameters: Sequence[Tensor]) -> Tensor:
    """Bounds the gradients; returns their norm before that, which is not finite if they are not."""
    largest = config.grad_clip or float("inf")
    if parameters[0].grad is not None and parameters[0].grad.is_sparse:
        return clip_rows(parameters[0], largest, config.grad_clip_value)
    if not config.grad_clip_value:
        return whole(nn.utils.clip_grad_norm_(parameters, largest))
    # An infinity would be cut to a number like any other.
    norm = whole(nn.utils.get_total_norm(p.grad for p in parameters if p.grad is not None))
    nn.utils.clip_grad_value_(parameters, config.grad_clip_value)
    nn.utils.clip_grad_norm_(parameters, largest)
    return norm


@torch.no_grad()
def update_target(target: Model, model: Model, rate: float) -> None:
    """Moves the target network towards the model; its statistics are simply the model's."""
    if rate == 1:
        target.load_state_dict(model.state_dict())
        return
    if target.returns is not None and model.returns is not None:
        # Both heads in the same units, or half of one and half of the other would be nobody's.
        target.returns.move(model.returns.mean, model.returns.std)
    moving, goal = ([own_part(one) for one in net.parameters()] for net in (target, model))
    torch._foreach_lerp_(moving, goal, rate)
    for own, new in zip(target.buffers(), model.buffers(), strict=True):
        own.copy_(new)
