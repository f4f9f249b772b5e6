"""Layers with the initial weights that every network has, and the two heads."""

import math
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

# Orthogonal gains. A hidden layer's keeps the size of its signal through the activation; a small
# policy head starts all actions almost equally likely.
HIDDEN_GAIN = math.sqrt(2)
POLICY_GAIN = 0.01
VALUE_GAIN = 1.0

_AS_IT_IS = nullcontext()

Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)


def linear(inputs: int, outputs: int, gain: float, rng: torch.Generator) -> nn.Linear:
    return _orthogonal(nn.Linear(inputs, outputs), gain, rng)


def convolution(
    inputs: int,
    outputs: int,
    *,
    kernel: int,
    stride: int,
    rng: torch.Generator,
    padding: int = 0,
    gain: float = HIDDEN_GAIN,
) -> nn.Conv2d:
    return _orthogonal(nn.Conv2d(inputs, outputs, kernel, stride, padding), gain, rng)


def head(layer: nn.Linear, hidden: Tensor) -> Tensor:
    """Returns a head's product, in float32 whatever the layers before it used.

    It costs next to nothing, and bfloat16's eight bits cannot hold a value in the hundreds.
    """
    with without_autocast(hidden.device.type):
        return functional.linear(hidden.float(), layer.weight, layer.bias)


def without_autocast(device: str) -> AbstractContextManager[object, bool | None]:
    """Turns autocast off inside."""
    if not torch.is_autocast_enabled(device):
        return _AS_IT_IS  # making a context costs a sampler more than the product
    return torch.autocast(device, enabled=False)


def weights_dtype(layers: nn.Sequential) -> torch.dtype:
    """Returns the dtype of the first layer's weights: a copy that acts may have fewer bits than the
    learner's."""
    first = next(layers.parameters(), None)
    return torch.float32 if first is None else first.dtype


def _orthogonal(layer: Layer, gain: float, rng: torch.Generator) -> Layer:
    assert layer.bias is not None
    nn.init.orthogonal_(layer.weight, gain, generator=rng)
    nn.init.zeros_(layer.bias)
    return layer
