"""The learner's ranks: one process each, one policy. Alone, everything here is the identity.

Before each step all ranks exchange a few numbers. They tell whether everyone has a batch (or the
step would hang in its first collective), how many steps the global mean is over, and who wants to
stop.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import msgpack
import torch
from torch import Tensor

from learner.score import Ends


class RanksError(Exception):
    """A collective failed: another rank is gone or stuck."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What one rank brings to a step, or all of them together."""

    ready: bool  # a batch is here
    stop: bool = False  # somebody asked to end
    late: bool = False  # time is up
    save: bool = False  # a checkpoint is due
    steps: int = 0
    ended: int = 0
    ends: tuple[Ends, ...] = ()  # of each unroll


class Ranks:
    """This process among the others, as torchrun says."""

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
        """Everybody's facts as one: ready when all are, the rest when anyone is.

        Whatever leads to a further collective must be decided here: ranks have clocks of their own.
        """
        if self.world == 1:
            return own
        numbers = [own.ready, own.stop, own.late, own.save, own.steps, own.ended]
        mine = torch.tensor(numbers, dtype=torch.float64)
        table = [torch.zeros_like(mine) for _ in range(self.world)]
        self.collective(lambda: torch.distributed.all_gather(table, mine))
        ready = all(row[0] > 0 for row in table)
        return Facts(
            ready=ready,
            stop=any(row[1] > 0 for row in table),
            late=any(row[2] > 0 for row in table),
            save=any(row[3] > 0 for row in table),
            steps=int(sum(row[4] for row in table)),
            ended=int(sum(row[5] for row in table)),
            ends=self._ends(own) if ready else (),
        )

    def _ends(self, own: Facts) -> tuple[Ends, ...]:
        """Of all ranks' unrolls; a stream's go now to one, now to another."""
        return tuple(
            Ends(inc, stream, envs, length, tuple(map(tuple, episodes)))
            for packed in self.gather(msgpack.packb(own.ends))
            for inc, stream, envs, length, episodes in msgpack.unpackb(packed)
        )

    def total(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks."""
        if self.world > 1:
            self.collective(lambda: torch.distributed.all_reduce(tensor))
        return tensor

    def gather(self, own: bytes) -> list[bytes]:
        """Every rank's bytes, in order of rank."""
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
        """Rank 0's numbers, on every rank."""
        tensor = torch.tensor(list(numbers), dtype=torch.int64)
        if self.world > 1:
            self.collective(lambda: torch.distributed.broadcast(tensor, src=0))
        return [int(number) for number in tensor]

    def close(self) -> None:
        if self.world > 1 and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()

    def collective(self, call: Callable[[], object]) -> None:
        """Runs what waits for all ranks; alone it is a call like any other."""
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
