"""Layers as every network starts them, and the two heads."""

import math
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

# Orthogonal gains. A hidden layer's keeps the size of its signal through the activation; a small
# policy head starts all actions almost equally likely.
HIDDEN_GAIN = math.sqrt(2)
POLICY_GAIN = 0.01
VALUE_GAIN = 1.0

Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)


def linear(inputs: int, outputs: int, gain: float, rng: torch.Generator) -> nn.Linear:
    return _orthogonal(nn.Linear(inputs, outputs), gain, rng)


def convolution(
    inputs: int, outputs: int, *, kernel: int, stride: int, rng: torch.Generator
) -> nn.Conv2d:
    return _orthogonal(nn.Conv2d(inputs, outputs, kernel, stride), HIDDEN_GAIN, rng)


def head(layer: nn.Linear, hidden: Tensor) -> Tensor:
    """A head's product, in float32 whatever the layers before it used.

    It costs next to nothing, and eight bits cannot hold a value in the hundreds.
    """
    device = hidden.device.type
    if not torch.is_autocast_enabled(device):
        return functional.linear(hidden.float(), layer.weight, layer.bias)
    with torch.autocast(device, enabled=False):
        return functional.linear(hidden.float(), layer.weight, layer.bias)


def _orthogonal(layer: Layer, gain: float, rng: torch.Generator) -> Layer:
    assert layer.bias is not None
    nn.init.orthogonal_(layer.weight, gain, generator=rng)
    nn.init.zeros_(layer.bias)
    return layer
