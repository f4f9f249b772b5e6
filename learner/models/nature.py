"""The convolutional network of Mnih et al., 2015, with a policy and a value head on one trunk.

The image is read as it travels, uint8. Its scale of 1/255 is put on the first layer's weights: the
bytes are exact in 16 bits, their 255ths are not, and the weights are the smaller tensor.
"""

import torch
from torch import Tensor
from torch.nn import functional

from learner.config import ModelConfig
from learner.models.features import Features
from learner.models.layers import (
    HIDDEN_GAIN,
    POLICY_GAIN,
    VALUE_GAIN,
    convolution,
    head,
    linear,
)
from learner.models.model import Model, Output
from learner.spaces import Leaf, Spaces

_LAYERS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # channels out, kernel, stride
_UNITS = 512
PIXEL = 1 / 255


class Nature(Model):
    """Three convolutions and a layer of 512 units; leaves that are no image join before the 512."""

    convolutional = True

    def __init__(self, config: ModelConfig, spaces: Spaces, *, rng: torch.Generator) -> None:
        super().__init__()
        self._leaf = _the_image(spaces)
        others = tuple(leaf for leaf in spaces.observation if leaf is not self._leaf)
        channels, height, width = _geometry(self._leaf)
        area = _outputs(self._leaf, height) * _outputs(self._leaf, width)
        (c1, k1, s1), (c2, k2, s2), (c3, k3, s3) = _LAYERS
        self.rest = Features(others, config.obs_scale)
        self.conv1 = convolution(channels, c1, kernel=k1, stride=s1, rng=rng)
        self.conv2 = convolution(c1, c2, kernel=k2, stride=s2, rng=rng)
        self.conv3 = convolution(c2, c3, kernel=k3, stride=s3, rng=rng)
        self.full = linear(c3 * area + self.rest.count, _UNITS, HIDDEN_GAIN, rng)
        self.policy_head = linear(_UNITS, spaces.action.n, POLICY_GAIN, rng)
        self.value_head = linear(_UNITS, 1, VALUE_GAIN, rng)

    def policy(self, obs: dict[str, Tensor]) -> Tensor:
        return head(self.policy_head, self._hidden(obs))

    def forward(self, obs: dict[str, Tensor]) -> Output:
        hidden = self._hidden(obs)
        value = head(self.value_head, hidden).squeeze(-1)
        return Output(head(self.policy_head, hidden), value)

    def pixels(self, obs: dict[str, Tensor]) -> Tensor:
        """The image leaf [..., *seen] as [N, channels, height, width] uint8, channels innermost in
        memory: convolutions are faster so, and bytes are the cheapest to put in order."""
        value = obs[self._leaf.name]
        images = value.reshape(-1, *self._leaf.seen)
        if len(self._leaf.shape) == 3 and not _channels_first(self._leaf.shape):
            images = images.movedim(-1, -3)
        images = images.reshape(len(images), -1, *images.shape[-2:])
        if images.is_contiguous(memory_format=torch.channels_last):
            return images
        # The same bytes as .contiguous(memory_format=...) makes, in less than half the time.
        return torch.stack(images.unbind(1), -1).movedim(-1, 1)

    def convolved(self, pixels: Tensor) -> list[Tensor]:
        """What each convolution gives, after its ReLU, laid out as the pixels are."""
        device = pixels.device.type
        autocast = torch.is_autocast_enabled(device)
        x = pixels.to(torch.get_autocast_dtype(device) if autocast else self.held)
        first = self.conv1
        x = functional.conv2d(x, first.weight * PIXEL, first.bias, first.stride).relu_()
        y = functional.relu_(self.conv2(x))
        return [x, y, functional.relu_(self.conv3(y))]

    def rows(self, convolved: Tensor) -> Tensor:
        """[N, C, H, W] -> [N, H*W*C]: this order is the memory's own, so nothing is copied."""
        return convolved.permute(0, 2, 3, 1).flatten(1)

    def _hidden(self, obs: dict[str, Tensor]) -> Tensor:
        rows = self.rows(self.convolved(self.pixels(obs))[-1])
        if self.rest.count:
            rest: Tensor = self.rest(obs)
            rows = torch.cat([rows, rest.reshape(len(rows), -1).to(rows.dtype)], dim=1)
        hidden = functional.relu_(self.full(rows))
        image = obs[self._leaf.name]
        return hidden.view(*image.shape[: image.dim() - len(self._leaf.seen)], _UNITS)


def _the_image(spaces: Spaces) -> Leaf:
    images = [leaf for leaf in spaces.observation if leaf.image and not leaf.categories]
    if not images:
        raise ValueError(
            'model.kind = "nature" needs an image (uint8 with height and width) and there is none'
            ' in the observation; set model.kind = "mlp"'
        )
    if len(images) > 1:
        raise ValueError(
            f'model.kind = "nature" takes one image, the observation has'
            f" {', '.join(leaf.name for leaf in images)}; leave all but one out with a wrapper, or"
            ' set model.kind = "mlp"'
        )
    if len(images[0].shape) > 3:
        raise ValueError(
            f'model.kind = "nature" takes images of 2 or 3 axes, {images[0].name} has'
            f' {list(images[0].shape)}; reshape it with a wrapper, or set model.kind = "mlp"'
        )
    return images[0]


def _geometry(leaf: Leaf) -> tuple[int, int, int]:
    """Channels, height and width of what the network sees."""
    if len(leaf.shape) == 2:
        return (leaf.stack, *leaf.shape)
    first, middle, last = leaf.shape
    if _channels_first(leaf.shape):
        return first * leaf.stack, middle, last
    return last * leaf.stack, first, middle


def _channels_first(shape: tuple[int, ...]) -> bool:
    """The smaller outer axis of three is the channels; of equal ones the first."""
    return shape[0] <= shape[-1]


def _outputs(leaf: Leaf, pixels: int) -> int:
    """Positions of the last layer along an axis of so many pixels."""
    for _, kernel, stride in _LAYERS:
        pixels = (pixels - kernel) // stride + 1
    if pixels < 1:
        raise ValueError(
            f'model.kind = "nature" needs images of at least 36 x 36 pixels, {leaf.name} has'
            f' {list(leaf.shape)}; enlarge it with a wrapper, or set model.kind = "mlp"'
        )
    return pixels
