"""The residual convolutions of Espeholt et al., 2018: the large network of the IMPALA paper."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from headrace.learner.config import ModelConfig
from headrace.learner.models.encoders.images import JoinedFeatures, Stack, geometry
from headrace.learner.models.kernels.usable import fused
from headrace.learner.models.layers import HIDDEN_GAIN, convolution
from headrace.learner.spaces import Leaf

_CHANNELS = (16, 32, 32)  # of each section
_UNITS = 256
# Orthogonal gains: the signal shall come out of a section about as large as it went in. No ReLU
# follows a section's convolution; what a block adds is one part in six blocks.
_SECTION_GAIN = 1.0
_BLOCK_GAIN = 1 / math.sqrt(2 * len(_CHANNELS))


class ResNet(JoinedFeatures):
    """Has three residual sections for each image and a layer of 256 units."""

    def __init__(
        self, leaves: tuple[Leaf, ...], config: ModelConfig, rng: torch.Generator, *, unscaled: int
    ) -> None:
        super().__init__(leaves, config, rng, unscaled=unscaled, stack=ResStack, units=_UNITS)


class ResStack(Stack):
    def __init__(self, leaf: Leaf, rng: torch.Generator) -> None:
        super().__init__(leaf)
        channels, height, width = geometry(leaf)
        sections = []
        for after in _CHANNELS:
            sections.append(ResidualSection(channels, after, rng))
            # Half the positions, rounded up: the pooling pads, so the smallest image gives one.
            channels, height, width = after, (height + 1) // 2, (width + 1) // 2
        self.sections = nn.ModuleList(sections)
        self.outputs = channels * height * width

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        first, *others = self.sections
        assert isinstance(first, ResidualSection)
        if fused(obs[self.leaf.name]):
            x = first.fused_pooled(self.fused(first.conv, obs, relu=False))
            for section in others:
                assert isinstance(section, ResidualSection)
                x = section.fused(x)
            return x.relu().flatten(1)
        x = first.pooled(self.first(first.conv, self.pixels(obs)))
        for section in others:
            x = section(x)
        return self.rows(x.relu())


class ResidualSection(nn.Module):
    """Applies a convolution, pooling to half the size, and two residual blocks."""

    def __init__(self, before: int, after: int, rng: torch.Generator) -> None:
        super().__init__()
        self.conv = _convolution(before, after, _SECTION_GAIN, rng)
        self.blocks = nn.Sequential(Block(after, rng), Block(after, rng))

    def forward(self, x: Tensor) -> Tensor:
        return self.pooled(self.conv(x))

    def pooled(self, convolved: Tensor) -> Tensor:
        x: Tensor = self.blocks(functional.max_pool2d(convolved, 3, stride=2, padding=1))
        return x

    def fused(self, x: Tensor) -> Tensor:
        """Does the same by kernels, with [N, height, width, channels] in memory."""
        from headrace.learner.models.kernels import gradients

        assert self.conv.bias is not None
        x = gradients.convolution(x, self.conv.weight, self.conv.bias)
        return self.fused_pooled(x)

    def fused_pooled(self, convolved: Tensor) -> Tensor:
        from headrace.learner.models.kernels.gradients import pooling, residual_block

        x = pooling(convolved)
        for block in self.blocks:
            assert isinstance(block, Block)
            x = residual_block(x, block.conv1, block.conv2)
        return x


class Block(nn.Module):
    def __init__(self, channels: int, rng: torch.Generator) -> None:
        super().__init__()
        self.conv1 = _convolution(channels, channels, HIDDEN_GAIN, rng)
        self.conv2 = _convolution(channels, channels, _BLOCK_GAIN, rng)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv2(functional.relu_(self.conv1(x.relu())))
        return x + y


def _convolution(before: int, after: int, gain: float, rng: torch.Generator) -> nn.Conv2d:
    return convolution(before, after, kernel=3, stride=1, padding=1, rng=rng, gain=gain)
