"""Small convolutions over boards: every cell is seen with its neighbours, none is passed over."""

import torch
from torch import Tensor
from torch.nn import functional

from headrace.learner.config import ModelConfig
from headrace.learner.models.encoders.images import JoinedFeatures, Stack, geometry
from headrace.learner.models.layers import convolution
from headrace.learner.spaces import Leaf

_CHANNELS = (16, 16)  # of each convolution, 3 x 3
_UNITS = 128  # most of the cost is the layer that joins all cells: 10 x 10 x 16 x 128 products


class Grid(JoinedFeatures):
    """Has two convolutions for each image and a layer of 128 units."""

    def __init__(
        self, leaves: tuple[Leaf, ...], config: ModelConfig, rng: torch.Generator, *, unscaled: int
    ) -> None:
        super().__init__(leaves, config, rng, unscaled=unscaled, stack=GridStack, units=_UNITS)


class GridStack(Stack):
    """Reads a byte b as log(1 + b): codes of a few units, and pixels, become numbers near 1."""

    def __init__(self, leaf: Leaf, rng: torch.Generator) -> None:
        super().__init__(leaf)
        channels, height, width = geometry(leaf)
        c1, c2 = _CHANNELS
        self.conv1 = convolution(channels, c1, kernel=3, stride=1, padding=1, rng=rng)
        self.conv2 = convolution(c1, c2, kernel=3, stride=1, padding=1, rng=rng)
        self.outputs = c2 * height * width

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        cells = self.pixels(obs).to(self.conv1.weight.dtype).log1p()
        x = functional.relu_(self.conv1(cells))
        return self.rows(functional.relu_(self.conv2(x)))
