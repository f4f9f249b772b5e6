"""The learner's ranks: one process each, one policy. Alone, everything here is the identity.

Before each step all ranks exchange a few numbers: whether each has a batch (without one the step
would hang in its first collective), how many steps the global mean is over, and whether any rank
wants to stop.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

import msgpack
import torch
from torch import Tensor

from headrace.learner.score import EpisodeEnds

# Different lags sent of one rank's batch; the largest beyond that count as the smallest of them.
_LAGS = 64


class RanksError(Exception):
    """Says that a collective failed: another rank is gone or stuck."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Holds what one rank brings to a step, or all of them together."""

    ready: bool  # a batch is here
    stop: bool = False  # somebody asked to end
    late: bool = False  # time is up
    save: bool = False  # a checkpoint is due
    show: bool = False  # numbers for people are due
    steps: int = 0
    ended: int = 0
    lags: tuple[tuple[int, int], ...] = ()  # (versions, unrolls) of the batch, ascending
    ends: tuple[EpisodeEnds, ...] = ()  # of each unroll


class Ranks:
    """Knows this process's place among the ranks, as torchrun says, and runs their collectives."""

    def __init__(self, *, timeout_s: float, cuda: bool) -> None:
        self.rank = int(os.environ.get("RANK", "0"))
        self.world = int(os.environ.get("WORLD_SIZE", "1"))
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        if self.world > 1:
            # Gloo beside NCCL: the exchange of facts must not touch the GPU.
            torch.distributed.init_process_group(
                "cpu:gloo,cuda:nccl" if cuda else "gloo", timeout=timedelta(seconds=timeout_s)
            )

    def exchange(self, own: Facts) -> Facts:
        """Returns everybody's facts as one: ready when all are, the other flags when anyone is.

        Whatever leads to a further collective must be decided here: ranks have clocks of their own.
        """
        if self.world == 1:
            return own
        numbers = [own.ready, own.stop, own.late, own.save, own.show, own.steps, own.ended]
        mine = torch.tensor([*numbers, *_flat(_folded(own.lags), _LAGS)], dtype=torch.float64)
        table = [torch.zeros_like(mine) for _ in range(self.world)]
        self.collective(lambda: torch.distributed.all_gather(table, mine))
        rows = [row.tolist() for row in table]
        lags: Counter[int] = Counter()
        for row in rows:
            for lag, unrolls in _pairs(row[len(numbers) :]):
                lags[int(lag)] += unrolls
        ready = all(row[0] for row in rows)
        return Facts(
            ready=ready,
            stop=any(row[1] for row in rows),
            late=any(row[2] for row in rows),
            save=any(row[3] for row in rows),
            show=any(row[4] for row in rows),
            steps=int(sum(row[5] for row in rows)),
            ended=int(sum(row[6] for row in rows)),
            lags=tuple(sorted(lags.items())),
            ends=self._ends(own) if ready else (),
        )

    def _ends(self, own: Facts) -> tuple[EpisodeEnds, ...]:
        """Gathers the episode ends of all ranks' unrolls: a stream's unrolls go to any rank."""
        return tuple(
            EpisodeEnds(inc, stream, envs, length, tuple(map(tuple, episodes)))
            for packed in self.gather(msgpack.packb(own.ends))
            for inc, stream, envs, length, episodes in msgpack.unpackb(packed)
        )

    def total(self, tensor: Tensor) -> Tensor:
        """Sums a tensor over all ranks, in place."""
        if self.world > 1:
            self.collective(lambda: torch.distributed.all_reduce(tensor))
        return tensor

    def mean(self, stat: Tensor) -> float:
        """Returns a number's mean over the ranks."""
        return float(self.total(stat.clone())) / self.world

    def means(self, stats: dict[str, Tensor]) -> dict[str, float]:
        """Returns the mean over the ranks of each number: their parts are shares of the whole."""
        means = self.total(torch.stack(list(stats.values()))) / self.world
        return dict(zip(stats, means.tolist(), strict=True))

    def gather(self, own: bytes) -> list[bytes]:
        """Returns every rank's bytes, in order of rank."""
        if self.world == 1:
            return [own]
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world)]
        size = torch.tensor([len(own)], dtype=torch.int64)
        self.collective(lambda: torch.distributed.all_gather(sizes, size))
        longest = max(int(n) for n in sizes)
        padded = torch.zeros(max(1, longest), dtype=torch.uint8)
        padded[: len(own)] = torch.frombuffer(bytearray(own or b"\0"), dtype=torch.uint8)[
            : len(own)
        ]
        table = [torch.zeros_like(padded) for _ in range(self.world)]
        self.collective(lambda: torch.distributed.all_gather(table, padded))
        return [bytes(row[: int(n)].numpy()) for row, n in zip(table, sizes, strict=True)]

    def same(self, numbers: Sequence[int]) -> list[int]:
        """Returns rank 0's numbers, on every rank."""
        tensor = torch.tensor(list(numbers), dtype=torch.int64)
        if self.world > 1:
            self.collective(lambda: torch.distributed.broadcast(tensor, src=0))
        return [int(number) for number in tensor]

    def close(self) -> None:
        if self.world > 1 and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()

    def collective(self, call: Callable[[], object]) -> None:
        """Runs a call that waits for all ranks; alone it is a call like any other."""
        try:
            call()
        except RuntimeError as error:
            if self.world == 1 or isinstance(error, torch.OutOfMemoryError):
                raise
            first = str(error).splitlines()[0]
            raise RanksError(
                f"rank {self.rank}: a collective failed, another rank is gone or stuck ({first});"
                " start the group again, it continues from its newest checkpoint"
            ) from error


def _folded(lags: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
    if len(lags) <= _LAGS:
        return lags
    return (*lags[: _LAGS - 1], (lags[_LAGS - 1][0], sum(count for _, count in lags[_LAGS - 1 :])))


def _flat(pairs: Sequence[tuple[float, int]], most: int) -> list[float]:
    """Flattens the pairs, padded with zeros to `most` pairs so that all rows are equally long."""
    flat = [float(number) for pair in pairs for number in pair]
    return flat + [0.0] * (2 * most - len(flat))


def _pairs(flat: Sequence[float]) -> Iterator[tuple[float, int]]:
    """Yields the pairs that are not padding."""
    for at in range(0, len(flat), 2):
        if flat[at + 1] > 0:
            yield flat[at], int(flat[at + 1])
