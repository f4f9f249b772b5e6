"""The first convolution, straight from the bytes of an image: nothing is padded or copied before.

The image is [N, C, H, W] uint8 with any strides; the result lies [N, H, W, O] in memory, bfloat16.
A product takes `_TAPS` of the taps of all channels at once.
"""

# A kernel has many arguments; they stand in rows.
# fmt: off
import torch
import triton
import triton.language as tl
from torch import Tensor

# Positions of one block, taps of one product, and programs that share a sum over all positions: the
# fastest on Hopper.
_POSITIONS = 128
_TAPS = 64
_PROGRAMS = 132 * 16


@triton.jit
def _taps(
    x, image, row, column, live, tap, stride_c, stride_h, stride_w, CHANNELS: tl.constexpr,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, KERNEL: tl.constexpr, STRIDE: tl.constexpr,
    PADDING: tl.constexpr,
):
    """Loads [BLOCK, TAPS]: what each position sees by these taps, counted over all channels."""
    channel, within = tap // (KERNEL * KERNEL), tap % (KERNEL * KERNEL)
    r = row[:, None] * STRIDE + (within // KERNEL - PADDING)[None, :]
    c = column[:, None] * STRIDE + (within % KERNEL - PADDING)[None, :]
    here = live[:, None] & (channel < CHANNELS)[None, :]
    if PADDING > 0:
        here = here & (r >= 0) & (r < HEIGHT) & (c >= 0) & (c < WIDTH)
    near = image[:, None] + ((channel * stride_c)[None, :] + r * stride_h + c * stride_w)
    return tl.load(x + near, mask=here, other=0)


@triton.jit
def _convolve_bytes(
    x, weight, bias, y, count, stride_n, stride_c, stride_h, stride_w, CHANNELS: tl.constexpr,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, OUT_H: tl.constexpr, OUT_W: tl.constexpr,
    OUTPUTS: tl.constexpr, KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
    PIECES: tl.constexpr, TAPS: tl.constexpr, RELU: tl.constexpr, BLOCK: tl.constexpr,
):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = at < count
    column, row = at % OUT_W, at // OUT_W % OUT_H
    image = (at // (OUT_W * OUT_H)).to(tl.int64) * stride_n
    o = tl.arange(0, OUTPUTS)
    total = tl.zeros((BLOCK, OUTPUTS), tl.float32)
    for piece in tl.static_range(PIECES):
        tap = piece * TAPS + tl.arange(0, TAPS)
        seen = _taps(
            x, image, row, column, live, tap, stride_c, stride_h, stride_w, CHANNELS, HEIGHT,
            WIDTH, KERNEL, STRIDE, PADDING,
        )
        b = tl.load(weight + tap[:, None] * OUTPUTS + o[None, :])
        total = tl.dot(seen.to(weight.dtype.element_ty), b, total)
    total += tl.load(bias + o)[None, :]
    if RELU:
        total = tl.maximum(total, 0.0)
    out = at.to(tl.int64)[:, None] * OUTPUTS + o[None, :]
    tl.store(y + out, total.to(y.dtype.element_ty), mask=live[:, None])


@triton.jit
def _byte_weight_sums(
    x, y, dy, dweight, dbias, count, stride_n, stride_c, stride_h, stride_w,
    CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, OUT_H: tl.constexpr,
    OUT_W: tl.constexpr, OUTPUTS: tl.constexpr, KERNEL: tl.constexpr, STRIDE: tl.constexpr,
    PADDING: tl.constexpr, PIECES: tl.constexpr, TAPS: tl.constexpr, RELU: tl.constexpr,
    BLOCK: tl.constexpr, TURNS: tl.constexpr,
):
    """Sums over a share of the positions what one piece of the taps gives. RELU: where `y`, which
    came out, is 0, nothing passes."""
    piece = tl.program_id(0) % PIECES
    part, parts = tl.program_id(0) // PIECES, tl.num_programs(0) // PIECES
    o, tap = tl.arange(0, OUTPUTS), piece * TAPS + tl.arange(0, TAPS)
    total = tl.zeros((TAPS, OUTPUTS), tl.float32)
    plain = tl.zeros((OUTPUTS,), tl.float32)
    for turn in range(TURNS):
        at = (turn * parts + part) * BLOCK + tl.arange(0, BLOCK)
        live = at < count
        column, row = at % OUT_W, at // OUT_W % OUT_H
        image = (at // (OUT_W * OUT_H)).to(tl.int64) * stride_n
        out = at.to(tl.int64)[:, None] * OUTPUTS + o[None, :]
        d = tl.load(dy + out, mask=live[:, None], other=0.0)
        if RELU:
            kept = tl.load(y + out, mask=live[:, None], other=0.0) > 0
            d = tl.where(kept, d, 0.0).to(dy.dtype.element_ty)
        if piece == 0:
            plain += tl.sum(d.to(tl.float32), 0)
        seen = _taps(
            x, image, row, column, live, tap, stride_c, stride_h, stride_w, CHANNELS, HEIGHT,
            WIDTH, KERNEL, STRIDE, PADDING,
        )
        total = tl.dot(tl.trans(seen.to(dy.dtype.element_ty)), d, total)
    sums = dweight + (part * PIECES * TAPS + tap)[:, None] * OUTPUTS
    tl.store(sums + o[None, :], total)
    if piece == 0:
        tl.store(dbias + part * OUTPUTS + o, plain)


class _Layer:
    """Holds the sizes of a first layer, as the kernels take them."""

    def __init__(self, x: Tensor, outputs: int, kernel: int, stride: int, padding: int) -> None:
        n, channels, height, width = x.shape
        self.out = tuple((side + 2 * padding - kernel) // stride + 1 for side in (height, width))
        self.pieces = triton.cdiv(channels * kernel * kernel, _TAPS)
        # With many products for a position, fewer positions keep all of a block in registers.
        self.block = _POSITIONS if self.pieces == 1 else _POSITIONS // 2
        self.count = n * self.out[0] * self.out[1]
        assert self.count < 1 << 31, "positions are counted in 32 bits"
        self.blocks = triton.cdiv(self.count, self.block)
        self.sizes = (
            channels, height, width, *self.out, outputs, kernel, stride, padding, self.pieces,
            _TAPS,
        )


def convolve_bytes(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    stride: int,
    padding: int,
    *,
    relu: bool,
    dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    """Convolves bytes [N, C, H, W] with weight [O, C, K, K]; returns [N, H', W', O]."""
    outputs, channels, kernel, _ = weight.shape
    layer = _Layer(x, outputs, kernel, stride, padding)
    taps = x.new_zeros((layer.pieces * _TAPS, outputs), dtype=dtype)
    taps[: channels * kernel * kernel] = weight.flatten(1).t()
    y = x.new_empty((x.shape[0], *layer.out, outputs), dtype=dtype)
    _convolve_bytes[(layer.blocks,)](
        x, taps, bias, y, layer.count, *x.stride(), *layer.sizes, relu, layer.block, num_warps=4
    )
    return y


def byte_weight_gradients(
    x: Tensor, y: Tensor, dy: Tensor, kernel: int, stride: int, padding: int, *, relu: bool
) -> tuple[Tensor, Tensor]:
    """Returns the gradients of weight [O, C, K, K] and bias [O], float32."""
    channels, outputs = x.shape[1], dy.shape[-1]
    layer = _Layer(x, outputs, kernel, stride, padding)
    parts = max(1, min(_PROGRAMS // layer.pieces, layer.blocks))
    dweight = torch.empty((parts, layer.pieces * _TAPS, outputs), device=x.device)
    dbias = torch.empty((parts, outputs), device=x.device)
    _byte_weight_sums[(parts * layer.pieces,)](
        x, y, dy, dweight, dbias, layer.count, *x.stride(), *layer.sizes, relu, layer.block,
        triton.cdiv(layer.blocks, parts),
        num_warps=4,
    )
    taps = dweight.sum(0)[: channels * kernel * kernel].t()
    return taps.reshape(outputs, channels, kernel, kernel), dbias.sum(0)
