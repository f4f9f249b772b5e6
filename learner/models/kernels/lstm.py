"""The LSTM over an unroll: product, gates and resets of a step of time as one kernel, and back."""

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
    added, kept, weight, bias, hs, cs, gates, t, count,
    SIZE: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr, INNER: tl.constexpr,
):
    """Computes row t + 1 of hs and cs from row t."""
    row, unit, here, at = block(count, SIZE, ROWS, UNITS)
    wide = row[:, None] * (4 * SIZE) + unit[None, :]
    begin = t.to(tl.int64) * count
    keep = tl.load(kept + begin + row, mask=row < count, other=0.0)[:, None]
    added += begin * (4 * SIZE)
    gates += begin * (4 * SIZE)
    hs += begin * SIZE
    cs += begin * SIZE
    i = gate(0, hs, keep, weight, bias, row, unit, count, SIZE, ROWS, UNITS, INNER)
    i = tl.sigmoid(i + tl.load(added + wide, mask=here, other=0.0))
    f = gate(1, hs, keep, weight, bias, row, unit, count, SIZE, ROWS, UNITS, INNER)
    f = tl.sigmoid(f + tl.load(added + wide + SIZE, mask=here, other=0.0))
    g = gate(2, hs, keep, weight, bias, row, unit, count, SIZE, ROWS, UNITS, INNER)
    g = tanh(g + tl.load(added + wide + 2 * SIZE, mask=here, other=0.0))
    o = gate(3, hs, keep, weight, bias, row, unit, count, SIZE, ROWS, UNITS, INNER)
    o = tl.sigmoid(o + tl.load(added + wide + 3 * SIZE, mask=here, other=0.0))
    c = f * keep * tl.load(cs + at, mask=here, other=0.0) + i * g
    tl.store(cs + count * SIZE + at, c, mask=here)
    tl.store(hs + count * SIZE + at, o * tanh(c), mask=here)
    tl.store(gates + wide, i, mask=here)
    tl.store(gates + wide + SIZE, f, mask=here)
    tl.store(gates + wide + 2 * SIZE, g, mask=here)
    tl.store(gates + wide + 3 * SIZE, o, mask=here)


@triton.jit(do_not_specialize=["t"])
def _step_back(
    douts, kept, weight, cs, gates, dgates, dcs, t, steps, count,
    SIZE: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr, INNER: tl.constexpr,
):
    """Computes row t of dgates and dcs from row t + 1."""
    row, unit, here, at = block(count, SIZE, ROWS, UNITS)
    wide = row[:, None] * (4 * SIZE) + unit[None, :]
    begin = t.to(tl.int64) * count
    keep = tl.load(kept + begin + row, mask=row < count, other=0.0)[:, None]
    # Nothing comes from behind the last row.
    goes_on = (row < count) & (t + 1 < steps)
    keep_after = tl.load(kept + begin + count + row, mask=goes_on, other=0.0)[:, None]
    gates += begin * (4 * SIZE)
    dgates += begin * (4 * SIZE)
    i = tl.load(gates + wide, mask=here, other=0.0)
    f = tl.load(gates + wide + SIZE, mask=here, other=0.0)
    g = tl.load(gates + wide + 2 * SIZE, mask=here, other=0.0)
    o = tl.load(gates + wide + 3 * SIZE, mask=here, other=0.0)
    dh = state_product(dgates + count * (4 * SIZE), weight, row, unit, count, SIZE, SIZE, 1,
                       4 * SIZE, 4 * SIZE, ROWS, UNITS, INNER)
    dh = dh * keep_after + tl.load(douts + begin * SIZE + at, mask=here, other=0.0)
    before = keep * tl.load(cs + begin * SIZE + at, mask=here, other=0.0)
    after = tanh(tl.load(cs + (begin + count) * SIZE + at, mask=here, other=0.0))
    dc = tl.load(dcs + (begin + count) * SIZE + at, mask=here, other=0.0)
    dc += dh * o * (1.0 - after * after)
    tl.store(dcs + begin * SIZE + at, dc * f * keep, mask=here)
    tl.store(dgates + wide, dc * g * i * (1.0 - i), mask=here)
    tl.store(dgates + wide + SIZE, dc * before * f * (1.0 - f), mask=here)
    tl.store(dgates + wide + 2 * SIZE, dc * i * (1.0 - g * g), mask=here)
    tl.store(dgates + wide + 3 * SIZE, dh * after * o * (1.0 - o), mask=here)


class _Lstm(Function):
    @staticmethod
    def forward(
        ctx: Any, added: Tensor, memory: Tensor, kept: Tensor, weight: Tensor, bias: Tensor
    ) -> Tensor:
        steps, count, _ = added.shape
        size = weight.shape[1]
        hs, cs = added.new_empty((2, steps + 1, count, size)).unbind(0)
        hs[0], cs[0] = memory.chunk(2, dim=-1)
        added, gates = added.contiguous(), added.new_empty(added.shape)
        for t in range(steps):
            _step[grid(count, size)](
                added, kept, weight, bias, hs, cs, gates, t, count, size, ROWS, UNITS, INNER
            )
        ctx.save_for_backward(kept, weight, hs, cs, gates)
        return hs[1:]

    @staticmethod
    def backward(ctx: Any, douts: Tensor) -> tuple[Tensor | None, ...]:
        kept, weight, hs, cs, gates = ctx.saved_tensors
        steps, count, _ = gates.shape
        size = weight.shape[1]
        dgates = gates.new_empty((steps + 1, *gates.shape[1:]))
        dcs = torch.empty_like(cs)
        dgates[-1] = dcs[-1] = 0.0
        douts = douts.contiguous()
        for t in reversed(range(steps)):
            _step_back[grid(count, size)](
                douts, kept, weight, cs, gates, dgates, dcs, t, steps, count,
                size, ROWS, UNITS, INNER,
            )
        dmemory = None
        if ctx.needs_input_grad[1]:
            dmemory = torch.cat([(dgates[0] @ weight) * kept[0].unsqueeze(-1), dcs[0]], dim=-1)
        dadded = dgates[:-1]
        dweight = weight_gradient(dadded, hs, kept)
        return dadded, dmemory, None, dweight, dadded.sum((0, 1))


def lstm(added: Tensor, memory: Tensor, kept: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Maps what the inputs add to the gates [T, B, 4U] and the memory [B, 2U] to outputs [T, B, U];
    `kept` [T, B] is 0 where a row starts from an empty memory."""
    outputs: Tensor = _Lstm.apply(added, memory, kept, weight, bias)
    return outputs
