"""Several ranks in one process: what each adds up over the ranks meets what the others add up."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def together(calls: Sequence[Callable[[Callable[[Tensor], Tensor]], T]]) -> list[T]:
    """Makes the calls, one a rank, each with what stands for Ranks.total; returns what they do."""
    meet, parts = threading.Barrier(len(calls), timeout=60), [torch.zeros(0)] * len(calls)

    def rank(at: int) -> T:
        def total(sums: Tensor) -> Tensor:
            parts[at] = sums
            meet.wait()
            added = torch.stack(parts).sum(0)
            meet.wait()
            return added

        try:
            return calls[at](total)
        except BaseException:
            meet.abort()  # the others would wait for us
            raise

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(rank, range(len(calls))))
