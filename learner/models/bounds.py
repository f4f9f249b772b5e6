"""Numbers that are cut to a range, and the gradient that they have beyond it."""

from typing import Any

import torch
from torch import Tensor


def clamped(x: Tensor, least: float, most: float) -> Tensor:
    """Returns x cut to [least, most]. Beyond a bound it has the gradient of what is not cut if
    whoever minimises is led back inside, and none if he is led further out.

    None at all, as a clamp has it, would keep outside whatever once came there. All of it would let
    a lasting pull, as of the entropy bonus, carry x ever further from the bound, with nothing to be
    seen, and as many steps would be needed until the way back was felt. Inside nothing changes,
    unlike with a soft bound.
    """
    cut: Tensor = _Clamped.apply(x, least, most)  # type: ignore[no-untyped-call]
    return cut


def bounded_exp(x: Tensor, most: float) -> Tensor:
    """Returns exp(x), at most exp(most). Beyond that its gradient is exp(most), where that of a
    clamp is zero: what became too large would have no way back."""
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
