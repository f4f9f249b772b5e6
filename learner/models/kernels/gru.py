"""The GRU over an unroll: product, gates and resets of a step of time as one kernel, and back."""

# A kernel has many arguments; they stand in rows.
# fmt: off
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import Function

from headrace.learner.models.kernels.state_product import (
    INNER,
    ROWS,
    UNITS,
    block,
    gate,
    grid,
    state_product,
    tanh,
    weight_gradient,
)


@triton.jit(do_not_specialize=["t"])
def _step(
    added, kept, weight, bias, hs, gates, t, count,
    SIZE: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr, INNER: tl.constexpr,
):
    """Computes row t + 1 of hs from row t."""
    row, unit, here, at = block(count, SIZE, ROWS, UNITS)
    three = row[:, None] * (3 * SIZE) + unit[None, :]
    four = row[:, None] * (4 * SIZE) + unit[None, :]
    begin = t.to(tl.int64) * count
    keep = tl.load(kept + begin + row, mask=row < count, other=0.0)[:, None]
    added += begin * (3 * SIZE)
    gates += begin * (4 * SIZE)
    hs += begin * SIZE
    reset = gate(0, hs, keep, weight, bias, row, unit, count, SIZE, ROWS, UNITS, INNER)
    reset = tl.sigmoid(reset + tl.load(added + three, mask=here, other=0.0))
    update = gate(1, hs, keep, weight, bias, row, unit, count, SIZE, ROWS, UNITS, INNER)
    update = tl.sigmoid(update + tl.load(added + three + SIZE, mask=here, other=0.0))
    carried = gate(2, hs, keep, weight, bias, row, unit, count, SIZE, ROWS, UNITS, INNER)
    new = tanh(tl.load(added + three + 2 * SIZE, mask=here, other=0.0) + reset * carried)
    before = keep * tl.load(hs + at, mask=here, other=0.0)
    tl.store(hs + count * SIZE + at, new + update * (before - new), mask=here)
    tl.store(gates + four, reset, mask=here)
    tl.store(gates + four + SIZE, update, mask=here)
    tl.store(gates + four + 2 * SIZE, carried, mask=here)
    tl.store(gates + four + 3 * SIZE, new, mask=here)


@triton.jit(do_not_specialize=["t"])
def _step_back(
    douts, kept, weight, hs, gates, dgates, dhs, t, steps, count,
    SIZE: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr, INNER: tl.constexpr,
):
    """Computes row t of dgates and dhs from row t + 1. Of dgates the first three are those of the
    state's product, and the fourth takes the place of the third for what the inputs add."""
    row, unit, here, at = block(count, SIZE, ROWS, UNITS)
    four = row[:, None] * (4 * SIZE) + unit[None, :]
    begin = t.to(tl.int64) * count
    keep = tl.load(kept + begin + row, mask=row < count, other=0.0)[:, None]
    # Nothing comes from behind the last row.
    goes_on = (row < count) & (t + 1 < steps)
    keep_after = tl.load(kept + begin + count + row, mask=goes_on, other=0.0)[:, None]
    gates += begin * (4 * SIZE)
    dgates += begin * (4 * SIZE)
    reset = tl.load(gates + four, mask=here, other=0.0)
    update = tl.load(gates + four + SIZE, mask=here, other=0.0)
    carried = tl.load(gates + four + 2 * SIZE, mask=here, other=0.0)
    new = tl.load(gates + four + 3 * SIZE, mask=here, other=0.0)
    dh = state_product(dgates + count * (4 * SIZE), weight, row, unit, count, SIZE, SIZE, 1,
                       3 * SIZE, 4 * SIZE, ROWS, UNITS, INNER)
    dh = dh * keep_after + tl.load(douts + begin * SIZE + at, mask=here, other=0.0)
    dh += tl.load(dhs + (begin + count) * SIZE + at, mask=here, other=0.0)
    before = keep * tl.load(hs + begin * SIZE + at, mask=here, other=0.0)
    dnew = dh * (1.0 - update) * (1.0 - new * new)
    tl.store(dhs + begin * SIZE + at, dh * update * keep, mask=here)
    tl.store(dgates + four, dnew * carried * reset * (1.0 - reset), mask=here)
    dupdate = dh * (before - new) * update * (1.0 - update)
    tl.store(dgates + four + SIZE, dupdate, mask=here)
    tl.store(dgates + four + 2 * SIZE, dnew * reset, mask=here)
    tl.store(dgates + four + 3 * SIZE, dnew, mask=here)


class _Gru(Function):
    @staticmethod
    def forward(
        ctx: Any, added: Tensor, memory: Tensor, kept: Tensor, weight: Tensor, bias: Tensor
    ) -> Tensor:
        steps, count, _ = added.shape
        size = weight.shape[1]
        hs = added.new_empty((steps + 1, count, size))
        hs[0] = memory
        added, gates = added.contiguous(), added.new_empty((steps, count, 4 * size))
        for t in range(steps):
            _step[grid(count, size)](
                added, kept, weight, bias, hs, gates, t, count, size, ROWS, UNITS, INNER
            )
        ctx.save_for_backward(kept, weight, hs, gates)
        return hs[1:]

    @staticmethod
    def backward(ctx: Any, douts: Tensor) -> tuple[Tensor | None, ...]:
        kept, weight, hs, gates = ctx.saved_tensors
        steps, count, _ = gates.shape
        size = weight.shape[1]
        dgates = gates.new_empty((steps + 1, *gates.shape[1:]))
        dhs = torch.empty_like(hs)
        dgates[-1] = dhs[-1] = 0.0
        douts = douts.contiguous()
        for t in reversed(range(steps)):
            _step_back[grid(count, size)](
                douts, kept, weight, hs, gates, dgates, dhs, t, steps, count,
                size, ROWS, UNITS, INNER,
            )
        dmemory = None
        if ctx.needs_input_grad[1]:
            dmemory = (dgates[0, :, : 3 * size] @ weight) * kept[0].unsqueeze(-1) + dhs[0]
        carried = dgates[:-1, :, : 3 * size]
        dadded = torch.cat([carried[..., : 2 * size], dgates[:-1, :, 3 * size :]], dim=-1)
        dweight = weight_gradient(carried, hs, kept)
        return dadded, dmemory, None, dweight, carried.sum((0, 1))


def gru(added: Tensor, memory: Tensor, kept: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Maps what the inputs add to the gates [T, B, 3U] and the memory [B, U] to outputs [T, B, U];
    `kept` [T, B] is 0 where a row starts from an empty memory."""
    outputs: Tensor = _Gru.apply(added, memory, kept, weight, bias)
    return outputs
