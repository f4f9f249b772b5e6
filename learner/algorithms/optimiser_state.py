"""The optimiser's state: saved and restored."""

from typing import Any

import torch
from torch import Tensor

from headrace.learner.sharding.parts import is_spread, spread_as


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
        {key: _plain(value) for key, value in group.items()} for group in state["param_groups"]
    ]
    return tensors, {"scalars": scalars, "groups": groups}


def _plain(setting: Any) -> Any:
    """Returns a setting as a file takes it; the device may have it as a tensor."""
    if isinstance(setting, Tensor):
        return float(setting)
    return list(setting) if isinstance(setting, tuple) else setting


def load_state(
    opt: torch.optim.Optimizer, tensors: dict[str, Tensor], meta: dict[str, Any]
) -> None:
    """Does the exact inverse, into an optimiser of the same kind over the same parameters."""
    state: dict[int, dict[str, Any]] = {}
    parameters = [one for group in opt.param_groups for one in group["params"]]
    for name, value in {**tensors, **meta["scalars"]}.items():
        index, slot = name.split(".", 1)
        # The optimiser would keep this very tensor and write on it.
        own = value
        if isinstance(value, Tensor):
            like = parameters[int(index)]
            own = spread_as(value, like) if slot != "step" and is_spread(like) else value.clone()
        state.setdefault(int(index), {})[slot] = own
    groups = [
        {
            key: tuple(value) if isinstance(now.get(key), tuple) else value
            for key, value in group.items()
        }
        for group, now in zip(meta["groups"], opt.param_groups, strict=True)
    ]
    opt.load_state_dict({"state": state, "param_groups": groups})
