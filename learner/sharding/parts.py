"""A tensor that may be spread over the ranks: this rank's part of it, all of it, and back."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


def is_spread(tensor: Tensor) -> bool:
    """Tells whether each rank holds a part of it."""
    return hasattr(tensor, "to_local")  # to ask for its class costs a second of imports


def own_part(tensor: Tensor) -> Tensor:
    """Returns what this rank holds of it, in the same memory; of other tensors that is all."""
    spread: Any = tensor.detach()
    part: Tensor = spread.to_local() if is_spread(tensor) else spread
    return part


def whole(tensor: Tensor) -> Tensor:
    """Returns all of it; if it is spread, every rank must ask, and holds it while it is used."""
    spread: Any = tensor.detach()
    gathered: Tensor = spread.full_tensor() if is_spread(tensor) else spread
    return gathered


def spread_as(tensor: Tensor, like: Tensor) -> Tensor:
    """Returns this whole tensor, which every rank has, spread as another one is."""
    if not is_spread(like):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    placed: Any = like
    here = tensor.to(like.device)
    return distribute_tensor(here, placed.device_mesh, placed.placements, src_data_rank=None)


@torch.no_grad()
def load(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copies the tensors of another such module into this one; either may be spread, and then every
    rank calls this."""
    for name, held in module.state_dict().items():
        held.copy_(spread_as(whole(tensors[name]), held))
