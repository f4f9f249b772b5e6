"""Tells where the kernels take the place of plain code."""

import functools
import importlib.util

import torch
from torch import Tensor


def usable(x: Tensor) -> bool:
    """Tells whether kernels may work on this tensor: it is on a GPU that can run them."""
    return x.is_cuda and _compiles(x.device)


def fused(x: Tensor) -> bool:
    """Tells whether they may be the layers that follow: those multiply in bfloat16 then."""
    autocast = torch.is_autocast_enabled("cuda") and usable(x)
    return autocast and torch.get_autocast_dtype("cuda") == torch.bfloat16


@functools.cache
def _compiles(device: torch.device) -> bool:
    # Triton comes with torch's own builds for GPUs, and needs tensor cores that know bfloat16.
    found = importlib.util.find_spec("triton") is not None
    return found and torch.cuda.get_device_capability(device) >= (8, 0)
