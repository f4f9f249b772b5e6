"""The convolutions of Mnih et al., 2015."""

import torch
from torch import Tensor
from torch.nn import functional

from headrace.learner.config import ModelConfig
from headrace.learner.models.encoders.images import JoinedFeatures, Stack, geometry
from headrace.learner.models.kernels.usable import fused
from headrace.learner.models.layers import convolution
from headrace.learner.spaces import Leaf

_LAYERS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # channels out, kernel, stride
_UNITS = 512


class Nature(JoinedFeatures):
    """Has three convolutions for each image and a layer of 512 units."""

    def __init__(
        self, leaves: tuple[Leaf, ...], config: ModelConfig, rng: torch.Generator, *, unscaled: int
    ) -> None:
        super().__init__(leaves, config, rng, unscaled=unscaled, stack=NatureStack, units=_UNITS)


class NatureStack(Stack):
    def __init__(self, leaf: Leaf, rng: torch.Generator) -> None:
        super().__init__(leaf)
        channels, height, width = geometry(leaf)
        area = _outputs(leaf, height) * _outputs(leaf, width)
        (c1, k1, s1), (c2, k2, s2), (c3, k3, s3) = _LAYERS
        self.conv1 = convolution(channels, c1, kernel=k1, stride=s1, rng=rng)
        self.conv2 = convolution(c1, c2, kernel=k2, stride=s2, rng=rng)
        self.conv3 = convolution(c2, c3, kernel=k3, stride=s3, rng=rng)
        self.outputs = c3 * area

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        if fused(obs[self.leaf.name]):
            x = self.fused(self.conv1, obs, relu=True).permute(0, 3, 1, 2)
        else:
            x = self.first(self.conv1, self.pixels(obs)).relu_()
        return self.rows(self.after(x)[-1])

    def convolved(self, pixels: Tensor) -> list[Tensor]:
        """Returns what each convolution gives, after its ReLU, laid out as the pixels are."""
        return self.after(self.first(self.conv1, pixels).relu_())

    def after(self, x: Tensor) -> list[Tensor]:
        """Returns what the first convolution gave, and what the others make of it."""
        y = functional.relu_(self.conv2(x))
        return [x, y, functional.relu_(self.conv3(y))]


def _outputs(leaf: Leaf, pixels: int) -> int:
    """Counts the positions of the last layer along an axis of `pixels` pixels."""
    for _, kernel, stride in _LAYERS:
        pixels = (pixels - kernel) // stride + 1
    if pixels < 1:
        raise ValueError(
            f'model.kind = "nature" needs images of at least 36 x 36 pixels, {leaf.name} has'
            f' {list(leaf.shape)}; set model.kind = "resnet", or enlarge it with a wrapper'
        )
    return pixels
