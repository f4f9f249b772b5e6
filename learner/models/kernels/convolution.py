"""The 3x3 convolution of few channels, stride 1, padding 1, as one kernel with what surrounds it.

For 16 and 32 channels the libraries' kernels spend most of their time on memory they need not
touch. Here a block of positions reads its nine neighbours from the cache, and the ReLU before, the
bias, the ReLU after, the mask of a backward pass and the residual sum cost nothing more.

Images lie [N, H, W, C] in memory, bfloat16; sums are float32.
"""

# A kernel has many arguments; they stand in rows.
# fmt: off
import torch
import triton
import triton.language as tl
from torch import Tensor

# Positions of one block, and programs that share a sum over all positions: the fastest on Hopper.
_POSITIONS = 128
_PROGRAMS = 132 * 48


@triton.jit
def _relu(x):
    """Returns a 16-bit float's ReLU: as an integer it is negative exactly when the float is."""
    positive = tl.maximum(x.to(tl.int16, bitcast=True), 0).to(tl.int16)
    return positive.to(x.dtype, bitcast=True)


@triton.jit
def _convolve(
    x, weight, bias, mask, residual, y, count, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, RELU_IN: tl.constexpr, RELU_OUT: tl.constexpr,
    BIAS: tl.constexpr, MASK: tl.constexpr, RESIDUAL: tl.constexpr, BLOCK: tl.constexpr,
):
    start = tl.program_id(0).to(tl.int64) * BLOCK
    lane = tl.arange(0, BLOCK)
    place = ((start % (HEIGHT * WIDTH)).to(tl.int32) + lane) % (HEIGHT * WIDTH)
    row, column = place // WIDTH, place % WIDTH
    live = lane < count - start
    i, o = tl.arange(0, INPUTS), tl.arange(0, OUTPUTS)
    x += start * INPUTS
    total = tl.zeros((BLOCK, OUTPUTS), tl.float32)
    for tap in tl.static_range(9):
        here = (row + (tap // 3 - 1) >= 0) & (row + (tap // 3 - 1) < HEIGHT) & live
        here = here & (column + (tap % 3 - 1) >= 0) & (column + (tap % 3 - 1) < WIDTH)
        near = (lane + ((tap // 3 - 1) * WIDTH + tap % 3 - 1))[:, None] * INPUTS + i[None, :]
        a = tl.load(x + near, mask=here[:, None], other=0.0)
        if RELU_IN:
            a = _relu(a)
        b = tl.load(weight + (tap * INPUTS + i)[:, None] * OUTPUTS + o[None, :])
        total = tl.dot(a, b, total)
    out = lane[:, None] * OUTPUTS + o[None, :]
    if BIAS:
        total += tl.load(bias + o)[None, :]
    if MASK:
        kept = tl.load(mask + start * OUTPUTS + out, mask=live[:, None], other=0.0) > 0
        total = tl.where(kept, total, 0.0)
    if RESIDUAL:
        added = tl.load(residual + start * OUTPUTS + out, mask=live[:, None], other=0.0)
        total += added.to(tl.float32)
    if RELU_OUT:
        total = tl.maximum(total, 0.0)
    tl.store(y + start * OUTPUTS + out, total.to(y.dtype.element_ty), mask=live[:, None])


@triton.jit
def _weight_sums(
    x, dy, dweight, dbias, count, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr, RELU_IN: tl.constexpr, BLOCK: tl.constexpr, TURNS: tl.constexpr,
):
    """Sums over a share of the positions what a row of three taps gives."""
    up = tl.program_id(0) % 3 - 1
    part, parts = tl.program_id(0) // 3, tl.num_programs(0) // 3
    i, o, lane = tl.arange(0, INPUTS), tl.arange(0, OUTPUTS), tl.arange(0, BLOCK)
    left = tl.zeros((INPUTS, OUTPUTS), tl.float32)
    middle = tl.zeros((INPUTS, OUTPUTS), tl.float32)
    right = tl.zeros((INPUTS, OUTPUTS), tl.float32)
    plain = tl.zeros((OUTPUTS,), tl.float32)
    for turn in range(TURNS):
        start = (turn * parts + part).to(tl.int64) * BLOCK
        place = ((start % (HEIGHT * WIDTH)).to(tl.int32) + lane) % (HEIGHT * WIDTH)
        row, column = place // WIDTH + up, place % WIDTH
        live = lane < count - start
        here = (row >= 0) & (row < HEIGHT) & live
        out = lane[:, None] * OUTPUTS + o[None, :]
        d = tl.load(dy + start * OUTPUTS + out, mask=live[:, None], other=0.0)
        if up == 0:
            plain += tl.sum(d.to(tl.float32), 0)
        near = x + (start + up * WIDTH) * INPUTS + lane[:, None] * INPUTS + i[None, :]
        a = tl.load(near - INPUTS, mask=(here & (column > 0))[:, None], other=0.0)
        b = tl.load(near, mask=here[:, None], other=0.0)
        c = tl.load(near + INPUTS, mask=(here & (column < WIDTH - 1))[:, None], other=0.0)
        if RELU_IN:
            a, b, c = _relu(a), _relu(b), _relu(c)
        left = tl.dot(tl.trans(a), d, left)
        middle = tl.dot(tl.trans(b), d, middle)
        right = tl.dot(tl.trans(c), d, right)
    size: tl.constexpr = INPUTS * OUTPUTS
    sums = dweight + (part * 9 + (up + 1) * 3) * size + i[:, None] * OUTPUTS + o[None, :]
    tl.store(sums, left)
    tl.store(sums + size, middle)
    tl.store(sums + 2 * size, right)
    if up == 0:
        tl.store(dbias + part * OUTPUTS + o, plain)


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    mask: Tensor | None = None,
    residual: Tensor | None = None,
    relu_in: bool = False,
    relu_out: bool = False,
) -> Tensor:
    """Convolves x [N, H, W, I] with weight [9, I, O]; then + bias, 0 where mask <= 0, + residual,
    ReLU, as far as they are given."""
    n, height, width, inputs = x.shape
    outputs = weight.shape[-1]
    y = x.new_empty(n, height, width, outputs)
    count = n * height * width
    _convolve[(triton.cdiv(count, _POSITIONS),)](
        x, weight, x if bias is None else bias, x if mask is None else mask,
        x if residual is None else residual, y, count, height, width, inputs, outputs, relu_in,
        relu_out, bias is not None, mask is not None, residual is not None, _POSITIONS,
        num_warps=2 if inputs == outputs == 16 else 4,
    )
    return y


def weight_gradients(x: Tensor, dy: Tensor, *, relu_in: bool = False) -> tuple[Tensor, Tensor]:
    """Returns the gradients of weight [9, I, O] and bias [O], float32."""
    n, height, width, inputs = x.shape
    outputs = dy.shape[-1]
    count = n * height * width
    block = _POSITIONS if inputs == outputs == 16 else _POSITIONS // 2
    blocks = triton.cdiv(count, block)
    parts = min(_PROGRAMS // 3, blocks)
    dweight = torch.empty((parts, 9, inputs, outputs), device=x.device)
    dbias = torch.empty((parts, outputs), device=x.device)
    _weight_sums[(parts * 3,)](
        x, dy, dweight, dbias, count, height, width, inputs, outputs, relu_in, block,
        triton.cdiv(blocks, parts),
        num_warps=1,
        num_stages=1,
    )
    return dweight.sum(0), dbias.sum(0)
