"""The sum that V-trace and GAE run from the last step to the first, as one kernel."""

import torch
import triton
import triton.language as tl
from torch import Tensor

_COLUMNS = 32  # of one block


@triton.jit
def _accumulate(deltas, factors, sums, columns, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = column < columns
    total = tl.zeros((BLOCK,), tl.float32)
    tl.store(sums + STEPS * columns + column, total, mask=here)
    for back in range(STEPS):
        at = (STEPS - 1 - back) * columns + column
        factor = tl.load(factors + at, mask=here, other=0.0)
        total = tl.load(deltas + at, mask=here, other=0.0) + factor * total
        tl.store(sums + at, total, mask=here)


def accumulate(deltas: Tensor, factors: Tensor) -> Tensor:
    """Solves x[t] = deltas[t] + factors[t] * x[t+1] of [T, B]; returns [T+1, B] with x[T] = 0."""
    steps, columns = deltas.shape
    sums = torch.empty((steps + 1, columns), device=deltas.device)
    grid = (triton.cdiv(columns, _COLUMNS),)
    _accumulate[grid](
        deltas.contiguous(), factors.contiguous(), sums, columns, steps, _COLUMNS, num_warps=1
    )
    return sums
