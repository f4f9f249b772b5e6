"""Convolutions over images, and one layer that joins them with all other leaves."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from headrace.learner.config import ModelConfig
from headrace.learner.models.encoders.features import Features
from headrace.learner.models.layers import HIDDEN_GAIN, linear
from headrace.learner.spaces import Leaf

# The image is read as it travels, uint8. Its scale is put on the first layer's weights: the bytes
# are exact in 16 bits, their 255ths are not, and the weights are the smaller tensor.
PIXEL = 1 / 255


class Stack(nn.Module):
    """Holds the convolutions of one image: leaves [N, *leaf.seen] -> rows [N, outputs]."""

    outputs: int

    def __init__(self, leaf: Leaf) -> None:
        super().__init__()
        self.leaf = leaf

    def planes(self, obs: dict[str, Tensor]) -> Tensor:
        """Returns the image leaf [N, *seen] as [N, channels, height, width]."""
        images = obs[self.leaf.name]
        if len(self.leaf.shape) == 3 and not _channels_first(self.leaf.shape):
            images = images.movedim(-1, -3)
        return images.reshape(images.shape[0], -1, *images.shape[-2:])

    def pixels(self, obs: dict[str, Tensor]) -> Tensor:
        """Returns the same with the channels innermost in memory: convolutions are faster so, and
        bytes are the cheapest to put in order."""
        images = self.planes(obs)
        if images.is_contiguous(memory_format=torch.channels_last):
            return images
        # The same bytes as .contiguous(memory_format=...) makes, in less than half the time.
        return torch.stack(images.unbind(1), -1).movedim(-1, 1)

    def rows(self, convolved: Tensor) -> Tensor:
        """Flattens [N, C, H, W] to [N, H*W*C], the order in memory, so nothing is copied."""
        return convolved.permute(0, 2, 3, 1).flatten(1)

    def fused(self, layer: nn.Conv2d, obs: dict[str, Tensor], *, relu: bool) -> Tensor:
        """Multiplies the first layer with bytes, by a kernel, or with what they were normalised to;
        returns [N, H, W, outputs]."""
        if obs[self.leaf.name].is_floating_point():
            x = self.first(layer, self.pixels(obs)).permute(0, 2, 3, 1)
            return x.relu_() if relu else x
        from headrace.learner.models.kernels.gradients import pixel_convolution

        assert layer.bias is not None and not isinstance(layer.padding, str)
        return pixel_convolution(
            self.planes(obs),
            layer.weight * PIXEL,
            layer.bias,
            stride=layer.stride[0],
            padding=layer.padding[0],
            relu=relu,
        )

    def first(self, layer: nn.Conv2d, pixels: Tensor) -> Tensor:
        """Multiplies the first layer with bytes, or with what they were normalised to."""
        device = pixels.device.type
        autocast = torch.is_autocast_enabled(device)
        x = pixels.to(torch.get_autocast_dtype(device) if autocast else layer.weight.dtype)
        weight = layer.weight if pixels.is_floating_point() else layer.weight * PIXEL
        return functional.conv2d(x, weight, layer.bias, layer.stride, layer.padding)


class JoinedFeatures(nn.Module):
    """Joins a stack for each image by one layer, which takes all other leaves too."""

    convolutional = True

    def __init__(
        self,
        leaves: tuple[Leaf, ...],
        config: ModelConfig,
        rng: torch.Generator,
        *,
        unscaled: int,
        stack: Callable[[Leaf, torch.Generator], Stack],
        units: int,
    ) -> None:
        super().__init__()
        images = _images(config.kind, leaves)
        others = tuple(leaf for leaf in leaves if leaf not in images)
        self.rest = Features(others, config.obs_scale, unscaled=unscaled)
        stacks = [stack(leaf, rng) for leaf in images]
        self.stacks = nn.ModuleList(stacks)
        self.convolved = sum(one.outputs for one in stacks)
        self.full = linear(self.convolved + self.rest.count, units, HIDDEN_GAIN, rng)
        self.units = units

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        parts: list[Tensor] = [stack(obs) for stack in self.stacks]
        if self.rest.count:
            parts.append(self.rest(obs).to(parts[0].dtype))
        rows = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        return functional.relu_(self.full(rows))


def _images(kind: str, leaves: tuple[Leaf, ...]) -> tuple[Leaf, ...]:
    images = image_leaves(leaves)
    if not images:
        raise ValueError(
            f'model.kind = "{kind}" needs an image (uint8 with height and width) and there is none'
            ' in the observation; set model.kind = "mlp"'
        )
    for leaf in images:
        if len(leaf.shape) > 3:
            raise ValueError(
                f'model.kind = "{kind}" takes images of 2 or 3 axes, {leaf.name} has'
                f' {list(leaf.shape)}; reshape it with a wrapper, or set model.kind = "mlp"'
            )
    return images


def image_leaves(leaves: tuple[Leaf, ...]) -> tuple[Leaf, ...]:
    """Returns the leaves that convolutions read."""
    return tuple(leaf for leaf in leaves if leaf.image and not leaf.categories)


def geometry(leaf: Leaf) -> tuple[int, int, int]:
    """Returns channels, height and width of what the network sees."""
    if len(leaf.shape) == 2:
        return (leaf.stack, *leaf.shape)
    first, middle, last = leaf.shape
    if _channels_first(leaf.shape):
        return first * leaf.stack, middle, last
    return last * leaf.stack, first, middle


def _channels_first(shape: tuple[int, ...]) -> bool:
    """Tells whether the first of three axes is the channels: the smaller outer one is; of equal
    ones the first."""
    return shape[0] <= shape[-1]
