"""Int8 convolutions, for processors that multiply bytes faster than floats."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from headrace.learner.models.encoders.images import PIXEL
from headrace.learner.models.encoders.nature import Nature, NatureStack
from headrace.learner.models.model import Model

# Rows of a batch that the ranges are measured on: in float32, so not on more than needed.
_MEASURED_ROWS = 8
# A range shrinks no faster than this per refresh: the next batch may hold what this one lacks.
_SHRINK = 0.9


def _encoder(model: Model) -> Nature:
    wrong = 'actor.precision = "int8" needs'
    if not isinstance(model.encoder, Nature):
        raise ValueError(f'{wrong} model.kind = "nature"; set it to "auto"')
    if len(model.encoder.stacks) > 1:
        raise ValueError(f'{wrong} an observation with one image; set it to "auto"')
    if model.images is not None:
        raise ValueError(f'{wrong} model.normalise_images = false; set it to "auto"')
    if model.core is not None:
        raise ValueError(f'{wrong} model.core = "none"; set it to "auto"')
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        raise ValueError(f'{wrong} a torch with oneDNN; set it to "auto"')
    return model.encoder


class Int8:
    """Runs the nature network in int8: the image as it is, weights scaled by channel, activations
    by layer.

    The ranges of the activations are the largest that were seen in float32 passes: over the first
    batch after every refresh, and, so that weights which never change see more than an episode's
    beginning, over the 1st, 2nd, 4th, 8th ... batch of all.
    """

    def __init__(self, model: Model) -> None:
        self._model, self._encoder = model, _encoder(model)
        (stack,) = self._encoder.stacks
        assert isinstance(stack, NatureStack)
        self._stack = stack
        self._convolutions = [stack.conv1, stack.conv2, stack.conv3]
        self._peaks = [0.0 for _ in self._convolutions]
        self._packed: list[_Packed] = []
        self._batches = 0

    def refresh(self) -> None:
        self._packed.clear()

    def policy(self, obs: dict[str, Tensor], memory: Tensor | None) -> tuple[Tensor, Tensor | None]:
        assert memory is None
        encoder = self._encoder
        x = self._stack.pixels(obs)
        self._prepare(x)
        scale = PIXEL
        for packed, peak in zip(self._packed, self._peaks, strict=False):
            after = peak / 255
            x = packed.convolve(x, scale, after)
            scale = after
        hidden = self._packed[-1].multiply(self._stack.rows(x), scale)
        if encoder.rest.count:
            rest = encoder.full.weight[:, -encoder.rest.count :]
            hidden += functional.linear(encoder.rest(self._model.seen(obs)), rest)
        return self._model.params(hidden.relu_(), obs), None

    def _prepare(self, x: Tensor) -> None:
        self._batches += 1
        if self._packed and self._batches & (self._batches - 1):
            return
        every = -(-len(x) // _MEASURED_ROWS)
        measured = [float(y.max()) for y in self._stack.convolved(x[::every])]
        shrink = 1.0 if self._packed else _SHRINK
        # A layer that is silent so far still needs a scale above 0.
        self._peaks = [
            max(now, before * shrink, 1e-6)
            for now, before in zip(measured, self._peaks, strict=True)
        ]
        if not self._packed:
            full = self._encoder.full
            convolved = full.in_features - self._encoder.rest.count
            self._packed = [_Packed(layer, layer.weight) for layer in self._convolutions]
            self._packed.append(_Packed(full, full.weight[:, :convolved]))


class _Packed:
    """Holds a layer's weights as int8, in the order in which oneDNN multiplies them.

    These are the operators behind torch's quantised CPU graphs. Those of torch.ops.quantized do the
    same on a kind of tensor that torch has deprecated, and were slower.
    """

    def __init__(self, layer: nn.Conv2d | nn.Linear, weight: Tensor) -> None:
        rows = weight.flatten(1)
        self._scales = rows.abs().amax(1).div_(127).clamp_(min=1e-12)
        rows = (rows / self._scales.unsqueeze(1)).round_().to(torch.int8)
        self._zeros = torch.zeros(len(rows), dtype=torch.int32)
        self._bias = layer.bias
        self._stride: list[int] = []
        if isinstance(layer, nn.Conv2d):
            self._stride = list(layer.stride)
            self._weight = torch.ops.onednn.qconv_prepack(
                rows.view_as(weight), self._scales, 1.0, 0, self._stride, [0, 0], [1, 1], 1, None
            )
        else:
            self._weight = torch.ops.onednn.qlinear_prepack(rows, None)

    def convolve(self, x: Tensor, scale: float, after: float) -> Tensor:
        """Maps uint8 of scale `scale` to uint8 of scale `after`, with ReLU."""
        y: Tensor = torch.ops.onednn.qconv2d_pointwise(
            x,
            scale,
            0,
            self._weight,
            self._scales,
            self._zeros,
            self._bias,
            self._stride,
            [0, 0],
            [1, 1],
            1,
            after,
            0,
            torch.uint8,
            "relu",
            [],
            "",
        )
        return y

    def multiply(self, x: Tensor, scale: float) -> Tensor:
        """Maps uint8 of scale `scale` to float32."""
        y: Tensor = torch.ops.onednn.qlinear_pointwise(
            x,
            scale,
            0,
            self._weight,
            self._scales,
            self._zeros,
            self._bias,
            1.0,
            0,
            torch.float32,
            "none",
            [],
            "",
        )
        return y
