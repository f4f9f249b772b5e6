"""Small convolutions over boards: every cell is seen with its neighbours, none is passed over."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from headrace.learner.config import ModelConfig
from headrace.learner.models.encoders.images import JoinedFeatures, Stack, geometry
from headrace.learner.models.layers import convolution
from headrace.learner.spaces import Leaf

_CHANNELS = (16, 16)  # of each convolution, 3 x 3
_UNITS = 128  # most of the cost is the layer that joins all cells: 10 x 10 x 16 x 128 products
_CODES = 16  # bytes below 15 are told apart; the others share the last code
_NUMBERS = 4  # that each code is given
# Of these at the start. Larger ones tell codes apart sooner, and let noise decide, where no reward
# is found at first, what is explored.
_DEVIATION = 0.25


class Grid(JoinedFeatures):
    """Has two convolutions for each image and a layer of 128 units."""

    def __init__(
        self,
        leaves: tuple[Leaf, ...],
        config: ModelConfig,
        rng: torch.Generator,
        *,
        unscaled: int,
        binary: tuple[str, ...] = (),
    ) -> None:
        def stack(leaf: Leaf, rng: torch.Generator) -> GridStack:
            return GridStack(leaf, rng, coded=leaf.name not in binary)

        super().__init__(leaves, config, rng, unscaled=unscaled, stack=stack, units=_UNITS)


class GridStack(Stack):
    """Reads a byte b as log(1 + b), so that pixels, too, become numbers near 1.

    `coded`: and as numbers that are learned for each channel and byte. By its logarithm alone a
    cell with a ball (6) is hardly another than one with a key (5).
    """

    first_codes: Tensor  # of each channel, its first row of `codes`

    def __init__(self, leaf: Leaf, rng: torch.Generator, *, coded: bool) -> None:
        super().__init__(leaf)
        channels, height, width = geometry(leaf)
        self.codes = None
        read = channels
        if coded:
            drawn = torch.randn(channels * _CODES, _NUMBERS, generator=rng)
            self.codes = nn.Parameter(drawn * _DEVIATION)
            first = torch.arange(channels, dtype=torch.int32) * _CODES
            self.register_buffer("first_codes", first, persistent=False)
            read += channels * _NUMBERS
        c1, c2 = _CHANNELS
        self.conv1 = convolution(read, c1, kernel=3, stride=1, padding=1, rng=rng)
        self.conv2 = convolution(c1, c2, kernel=3, stride=1, padding=1, rng=rng)
        self.outputs = c2 * height * width

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        cells = self.pixels(obs)
        x = cells.to(self.conv1.weight.dtype).log1p()
        if self.codes is not None:
            which = cells.permute(0, 2, 3, 1).clamp(max=_CODES - 1).int() + self.first_codes
            coded = functional.embedding(which, self.codes).flatten(3).permute(0, 3, 1, 2)
            x = torch.cat([x, coded.to(x.dtype)], dim=1)
        x = functional.relu_(self.conv1(x))
        return self.rows(functional.relu_(self.conv2(x)))
