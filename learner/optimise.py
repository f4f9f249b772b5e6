"""From gradients to a step."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from learner.config import LearnerConfig


def make(config: LearnerConfig, model: nn.Module, *, lr: float) -> torch.optim.Optimizer:
    """The optimiser of the run, over all parameters."""
    parameters = list(model.parameters())
    cuda = parameters[0].is_cuda
    if config.optimiser == "rmsprop":
        return torch.optim.RMSprop(
            parameters, lr=lr, eps=config.eps, alpha=config.decay, momentum=config.momentum,
            foreach=True,
        )  # fmt: skip
    return torch.optim.Adam(parameters, lr=lr, eps=config.eps, foreach=not cuda, fused=cuda)


def clip(config: LearnerConfig, parameters: Sequence[Tensor]) -> Tensor:
    """Bounds the gradients; returns their norm as it was before, which shows what is not finite."""
    largest = config.grad_clip or float("inf")
    if not config.grad_clip_value:
        return nn.utils.clip_grad_norm_(parameters, largest)
    # An infinity would be cut to a number like any other.
    norm = nn.utils.get_total_norm(p.grad for p in parameters if p.grad is not None)
    nn.utils.clip_grad_value_(parameters, config.grad_clip_value)
    nn.utils.clip_grad_norm_(parameters, largest)
    return norm


@torch.no_grad()
def follow(target: nn.Module, model: nn.Module, rate: float) -> None:
    """Moves the target network towards the model; its statistics are simply the model's."""
    if rate == 1:
        target.load_state_dict(model.state_dict())
        return
    torch._foreach_lerp_(list(target.parameters()), list(model.parameters()), rate)
    for own, new in zip(target.buffers(), model.buffers(), strict=True):
        own.copy_(new)
