"""The kernels as differentiable functions, for networks that run under bfloat16 autocast.

Images lie [N, H, W, C] in memory. Weights are those of torch's convolutions, float32, and so are
their gradients; what lies between two layers is bfloat16.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from headrace.learner.models.kernels.convolution import convolve, weight_gradients
from headrace.learner.models.kernels.pixels import byte_weight_gradients, convolve_bytes
from headrace.learner.models.kernels.pooling import largest, spread


def pixel_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    stride: int,
    padding: int,
    relu: bool,
    dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    """Convolves bytes [N, C, H, W]; returns [N, H', W', O]."""
    y: Tensor = _PixelConvolution.apply(x, weight, bias, stride, padding, relu, dtype)
    return y


def convolution(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Convolves by 3x3 taps, stride 1, padding 1."""
    y: Tensor = _Convolution.apply(x, weight, bias)
    return y


def pooling(x: Tensor) -> Tensor:
    """Returns the maxima over 3x3 positions, stride 2, padding 1."""
    y: Tensor = _Pooling.apply(x)
    return y


def residual_block(x: Tensor, first: torch.nn.Conv2d, second: torch.nn.Conv2d) -> Tensor:
    """Returns x + second(relu(first(relu(x))))."""
    y: Tensor = _ResidualBlock.apply(x, first.weight, first.bias, second.weight, second.bias)
    return y


class _PixelConvolution(Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        stride: int,
        padding: int,
        relu: bool,
        dtype: torch.dtype,
    ) -> Tensor:
        y = convolve_bytes(x, weight, bias, stride, padding, relu=relu, dtype=dtype)
        ctx.save_for_backward(x, y if relu else None)
        ctx.layer = (weight.shape[-1], stride, padding)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, y = ctx.saved_tensors
        dy = dy.contiguous()
        relu = y is not None
        found = byte_weight_gradients(x, y if relu else dy, dy, *ctx.layer, relu=relu)
        return None, *found, None, None, None, None


class _Convolution(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return convolve(x, _taps(weight, x.dtype), bias)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        dy = dy.contiguous()
        dweight, dbias = weight_gradients(x, dy)
        return convolve(dy, _mirrored(weight, dy.dtype)), _as_weight(dweight), dbias


class _Pooling(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y, which = largest(x)
        ctx.save_for_backward(which)
        ctx.sides = x.shape[1:3]
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        (which,) = ctx.saved_tensors
        return spread(dy.contiguous(), which, *ctx.sides)


class _ResidualBlock(Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, bias2: Tensor
    ) -> Tensor:
        hidden = convolve(x, _taps(weight1, x.dtype), bias1, relu_in=True, relu_out=True)
        ctx.save_for_backward(x, hidden, weight1, weight2)
        return convolve(hidden, _taps(weight2, x.dtype), bias2, residual=x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, hidden, weight1, weight2 = ctx.saved_tensors
        dy = dy.contiguous()
        dweight2, dbias2 = weight_gradients(hidden, dy)
        dhidden = convolve(dy, _mirrored(weight2, dy.dtype), mask=hidden)
        dweight1, dbias1 = weight_gradients(x, dhidden, relu_in=True)
        dx = convolve(dhidden, _mirrored(weight1, dy.dtype), mask=x, residual=dy)
        return dx, _as_weight(dweight1), dbias1, _as_weight(dweight2), dbias2


def _taps(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns weight [O, I, 3, 3] as [9, I, O]."""
    return weight.permute(2, 3, 1, 0).reshape(9, weight.shape[1], -1).to(dtype).contiguous()


def _mirrored(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns the weights [9, O, I] that carry a gradient back through the convolution."""
    taps = weight.flip(2, 3).permute(2, 3, 0, 1).reshape(9, -1, weight.shape[1])
    return taps.to(dtype).contiguous()


def _as_weight(taps: Tensor) -> Tensor:
    """Returns [9, I, O] as [O, I, 3, 3]."""
    return taps.view(3, 3, *taps.shape[1:]).permute(3, 2, 0, 1)
