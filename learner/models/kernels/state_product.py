"""The product of a recurrent core's state with its weights: what its kernels have in common.

One launch computes one step of time, product and gates together, for a block of rows and units in
each program. A captured graph holds as many launches as an unroll has steps. A kernel that goes
over all steps by itself would have to keep its rows on one processor, which leaves most of a GPU
idle for as few columns as a batch has, or to wait inside for all others, which can stand still.
"""

# A kernel has many arguments; they stand in rows.
# fmt: off
import triton
import triton.language as tl
from torch import Tensor

ROWS = UNITS = INNER = 32  # of one block, and of the sum inside


@triton.jit
def block(count, SIZE: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr):
    """Returns the rows and units of this program, which of them exist, and where they lie."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    unit = tl.program_id(1) * UNITS + tl.arange(0, UNITS)
    here = (row < count)[:, None] & (unit < SIZE)[None, :]
    return row, unit, here, row[:, None] * SIZE + unit[None, :]


@triton.jit
def state_product(
    x, weight, row, column, count, columns, across, down, inner,
    STRIDE: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr, INNER: tl.constexpr,
):
    """Returns x[row, k] * weight at k * `across` + column * `down`, summed over k below `inner`.

    Float32 throughout: each factor as three of the tensor cores' 19 bits.
    """
    total = tl.zeros((ROWS, UNITS), tl.float32)
    for begin in range(0, inner, INNER):
        k = begin + tl.arange(0, INNER)
        rows = tl.load(
            x + row[:, None] * STRIDE + k[None, :],
            mask=(row < count)[:, None] & (k < inner)[None, :], other=0.0,
        )
        factors = tl.load(
            weight + k[:, None] * across + column[None, :] * down,
            mask=(k < inner)[:, None] & (column < columns)[None, :], other=0.0,
        )
        total = tl.dot(rows, factors, total, input_precision="tf32x3")
    return total


@triton.jit
def gate(
    number, hs, keep, weight, bias, row, unit, count,
    SIZE: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr, INNER: tl.constexpr,
):
    """Returns what the state and the bias add to a gate, the `number`th of the weights."""
    total = state_product(
        hs, weight + number * SIZE * SIZE, row, unit, count, SIZE, 1, SIZE, SIZE,
        SIZE, ROWS, UNITS, INNER,
    )
    bias_here = tl.load(bias + number * SIZE + unit, mask=unit < SIZE, other=0.0)
    return total * keep + bias_here[None, :]


@triton.jit
def tanh(x):
    """Returns tanh; 1e-7 off at most."""
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


def grid(count: int, units: int) -> tuple[int, int]:
    """Returns how many programs a step of so many rows and units takes."""
    return triton.cdiv(count, ROWS), triton.cdiv(units, UNITS)


def weight_gradient(dgates: Tensor, hs: Tensor, kept: Tensor) -> Tensor:
    """Returns the gradient of the state's weights, of all steps at once; `hs` has one row more."""
    before = (hs[:-1] * kept.unsqueeze(-1)).flatten(0, 1)
    return dgates.flatten(0, 1).t() @ before
