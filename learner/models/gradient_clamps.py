"""Clamps that keep a gradient beyond their bounds."""

from typing import Any

import torch
from torch import Tensor


def clamp_passing_gradient(x: Tensor, least: float, most: float) -> Tensor:
    """Returns x cut to [least, most]. Beyond a bound the gradient passes unchanged if descent along
    it leads back inside, and is zero if it leads further out.

    With no gradient at all, as torch's clamp has it, x could never come back inside. With all of it
    a constant pull, such as the entropy bonus, would carry x ever further from the bound unseen,
    and the way back would take as many steps. Inside nothing changes, unlike with a soft bound.
    """
    cut: Tensor = _Clamped.apply(x, least, most)  # type: ignore[no-untyped-call]
    return cut


def bounded_exp(x: Tensor, most: float) -> Tensor:
    """Returns exp(x), at most exp(most). Beyond that its gradient is exp(most): with a
    clamp's, which is zero, x could never become smaller again."""
    bounded: Tensor = _BoundedExp.apply(x, most)  # type: ignore[no-untyped-call]
    return bounded


class _Clamped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, least: float, most: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.bounds = least, most
        return x.clamp(least, most)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        least, most = ctx.bounds
        outward = ((x > most) & (gradient < 0)) | ((x < least) & (gradient > 0))
        return torch.where(outward, 0.0, gradient), None, None


class _BoundedExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, most: float) -> Tensor:
        bounded = x.clamp(max=most).exp()
        ctx.save_for_backward(bounded)
        return bounded

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (bounded,) = ctx.saved_tensors
        return gradient * bounded, None
