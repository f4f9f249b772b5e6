"""The maximum over 3x3 positions, stride 2, padding 1, that remembers which it was in one byte.

Images lie [N, H, W, C] in memory.
"""

# A kernel has many arguments; they stand in rows.
# fmt: off
import torch
import triton
import triton.language as tl
from torch import Tensor

# Positions of one block, the fastest on Hopper.
_LARGEST, _SPREAD = 32, 128


@triton.jit
def _largest(
    x, y, which, count, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    HALF_H: tl.constexpr = (HEIGHT + 1) // 2
    HALF_W: tl.constexpr = (WIDTH + 1) // 2
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.arange(0, CHANNELS)[None, :]
    column, row = at % HALF_W, at // HALF_W % HALF_H
    image = (at // (HALF_W * HALF_H)).to(tl.int64) * (HEIGHT * WIDTH * CHANNELS)
    best = tl.full((BLOCK, CHANNELS), float("-inf"), tl.float32)
    found = tl.zeros((BLOCK, CHANNELS), tl.int32)
    for tap in tl.static_range(9):
        r, c = row * 2 + (tap // 3 - 1), column * 2 + (tap % 3 - 1)
        here = (r >= 0) & (r < HEIGHT) & (c >= 0) & (c < WIDTH) & (at < count)
        near = (image + (r * WIDTH + c) * CHANNELS)[:, None] + channel
        value = tl.load(x + near, mask=here[:, None], other=float("-inf")).to(tl.float32)
        found = tl.where(value > best, tap, found)
        best = tl.maximum(best, value)
    out = at.to(tl.int64)[:, None] * CHANNELS + channel
    inside = (at < count)[:, None]
    tl.store(y + out, best.to(y.dtype.element_ty), mask=inside)
    tl.store(which + out, found.to(tl.uint8), mask=inside)


@triton.jit
def _spread(
    dy, which, dx, count, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    HALF_H: tl.constexpr = (HEIGHT + 1) // 2
    HALF_W: tl.constexpr = (WIDTH + 1) // 2
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.arange(0, CHANNELS)[None, :]
    column, row = at % WIDTH, at // WIDTH % HEIGHT
    image = (at // (WIDTH * HEIGHT)).to(tl.int64) * (HALF_H * HALF_W * CHANNELS)
    total = tl.zeros((BLOCK, CHANNELS), tl.float32)
    for corner in tl.static_range(4):
        r, c = (row + corner // 2) // 2, (column + corner % 2) // 2
        # An even row or column lies in one window only; it must not count twice.
        here = (at < count) & (r < HALF_H) & (c < HALF_W)
        here = (
            here & ((corner // 2 == 0) | (row % 2 == 1)) & ((corner % 2 == 0) | (column % 2 == 1))
        )
        near = (image + (r * HALF_W + c) * CHANNELS)[:, None] + channel
        tap = ((row - 2 * r + 1) * 3 + column - 2 * c + 1)[:, None]
        chosen = tl.load(which + near, mask=here[:, None], other=255).to(tl.int32) == tap
        value = tl.load(dy + near, mask=here[:, None], other=0.0).to(tl.float32)
        total += tl.where(chosen, value, 0.0)
    out = at.to(tl.int64)[:, None] * CHANNELS + channel
    tl.store(dx + out, total.to(dx.dtype.element_ty), mask=(at < count)[:, None])


def largest(x: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the maxima of x [N, H, W, C], and which of the nine positions each was."""
    n, height, width, channels = x.shape
    y = x.new_empty(n, (height + 1) // 2, (width + 1) // 2, channels)
    which = torch.empty_like(y, dtype=torch.uint8)
    count = y.numel() // channels
    grid = (triton.cdiv(count, _LARGEST),)
    _largest[grid](x, y, which, count, height, width, channels, _LARGEST, num_warps=4)
    return y, which


def spread(dy: Tensor, which: Tensor, height: int, width: int) -> Tensor:
    """Returns the gradient of x [N, height, width, C]."""
    channels = dy.shape[-1]
    dx = dy.new_empty(dy.shape[0], height, width, channels)
    count = dx.numel() // channels
    grid = (triton.cdiv(count, _SPREAD),)
    _spread[grid](dy, which, dx, count, height, width, channels, _SPREAD, num_warps=4)
    return dx
