"""Several ranks in one process: what each adds up over the ranks meets what the others add up."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
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


def check_statistics(
    normalisers: Sequence[Any], draw: Callable[[], tuple[dict[str, Tensor], Tensor, NDArray[Any]]]
) -> None:
    """Updates those of all ranks four times with what is drawn: observations, which steps are live,
    and the rows that count, whose mean and variance numpy has to find, too."""
    seen = []
    for _ in range(4):
        calls = []
        for normaliser in normalisers:
            obs, live, rows = draw()
            calls.append(partial(normaliser.update, obs, live))
            seen.append(rows)
        together(calls)
    everything = np.concatenate(seen)
    for normaliser in normalisers:
        assert normaliser.count == len(everything)
        np.testing.assert_allclose(normaliser.mean.numpy(), everything.mean(0), rtol=1e-12)
        np.testing.assert_allclose(normaliser.var.numpy(), everything.var(0), rtol=1e-10)
