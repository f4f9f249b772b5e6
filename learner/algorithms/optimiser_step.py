"""The optimiser: made, stepped with clipped gradients, saved and restored; the target network."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headrace.learner.config import LearnerConfig
from headrace.learner.models.model import Model


def make_optimiser(config: LearnerConfig, model: nn.Module, *, lr: float) -> torch.optim.Optimizer:
    """Returns the run's optimiser, over all parameters."""
    parameters = list(model.parameters())
    cuda = parameters[0].is_cuda
    if config.optimiser == "rmsprop":
        return torch.optim.RMSprop(
            parameters,
            lr=lr,
            eps=config.eps,
            alpha=config.decay,
            momentum=config.momentum,
            foreach=True,
        )
    return torch.optim.Adam(parameters, lr=lr, eps=config.eps, foreach=not cuda, fused=cuda)


def clip_gradients(config: LearnerConfig, parameters: Sequence[Tensor]) -> Tensor:
    """Bounds the gradients; returns their norm before that, which is not finite if they are not."""
    largest = config.grad_clip or float("inf")
    if not config.grad_clip_value:
        return nn.utils.clip_grad_norm_(parameters, largest)
    # An infinity would be cut to a number like any other.
    norm = nn.utils.get_total_norm(p.grad for p in parameters if p.grad is not None)
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
    torch._foreach_lerp_(list(target.parameters()), list(model.parameters()), rate)
    for own, new in zip(target.buffers(), model.buffers(), strict=True):
        own.copy_(new)


def restore(optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor], meta: Any) -> None:
    """Restores a checkpoint's optimiser state; settings such as lr stay as the run has them."""
    groups = [{**group, "params": list(group["params"])} for group in optimiser.param_groups]
    load_state(optimiser, tensors, meta)
    for group, own in zip(optimiser.param_groups, groups, strict=True):
        group.update({name: value for name, value in own.items() if name != "params"})
        if group.get("momentum"):
            for parameter in group["params"]:
                state = optimiser.state[parameter]
                if state and "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(parameter)


def state_of(opt: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Returns an optimiser's state as tensors, which alias its own, and a msgpack-able rest."""
    tensors: dict[str, Tensor] = {}
    scalars: dict[str, Any] = {}
    state = opt.state_dict()
    for index, slots in state["state"].items():
        for slot, value in slots.items():
            (tensors if isinstance(value, Tensor) else scalars)[f"{index}.{slot}"] = value
    groups = [
        {key: list(value) if isinstance(value, tuple) else value for key, value in group.items()}
        for group in state["param_groups"]
    ]
    return tensors, {"scalars": scalars, "groups": groups}


def load_state(
    opt: torch.optim.Optimizer, tensors: dict[str, Tensor], meta: dict[str, Any]
) -> None:
    """Does the exact inverse, into an optimiser of the same kind over the same parameters."""
    state: dict[int, dict[str, Any]] = {}
    for name, value in {**tensors, **meta["scalars"]}.items():
        index, slot = name.split(".", 1)
        # The optimiser would keep this very tensor and write on it.
        own = value.clone() if isinstance(value, Tensor) else value
        state.setdefault(int(index), {})[slot] = own
    groups = [
        {
            key: tuple(value) if isinstance(now.get(key), tuple) else value
            for key, value in group.items()
        }
        for group, now in zip(meta["groups"], opt.param_groups, strict=True)
    ]
    opt.load_state_dict({"state": state, "param_groups": groups})
