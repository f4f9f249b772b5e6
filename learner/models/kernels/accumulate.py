"""Sums from the last step to the first, as one operation: a compiled step has one for it, too."""

from typing import Any

import torch
from torch import Tensor, library

from headrace.learner.models.kernels.usable import usable


def accumulate(*, deltas: Tensor, factors: Tensor) -> Tensor:
    """Solves x[t] = deltas[t] + factors[t] * x[t+1]; returns [T+1, B] with x[T] = 0."""
    if usable(deltas):
        from headrace.learner.models.kernels import recurrence

        return recurrence.accumulate(deltas, factors)
    summed: Any = _summed
    sums: Tensor = summed(deltas, factors)
    return sums


@library.custom_op("headrace::accumulate", mutates_args=())
def _summed(deltas: Tensor, factors: Tensor) -> Tensor:
    sums = torch.cat([deltas, torch.zeros_like(deltas[:1])])
    if deltas.is_cpu:
        rows, by = sums.numpy(), factors.numpy()
        for t in range(len(by) - 1, -1, -1):
            rows[t] += by[t] * rows[t + 1]
        return sums
    # Views made once: a row costs one fused call in this loop and nothing else.
    views = sums.unbind()
    for t, factor in reversed(list(enumerate(factors.unbind()))):
        views[t].addcmul_(factor, views[t + 1])
    return sums


@_summed.register_fake
def _(deltas: Tensor, _: Tensor) -> Tensor:
    return deltas.new_empty((len(deltas) + 1, *deltas.shape[1:]))
