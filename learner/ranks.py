"""The learner's ranks: one process each, one policy. Alone, everything here is the identity.

Before each step all ranks exchange a few numbers: whether each has a batch (without one the step
would hang in its first collective), how many steps the global mean is over, and whether any rank
wants to stop.
"""

import contextlib
import inspect
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import msgspec
import torch
from msgspec import Struct
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from headrace.broker.errors import ExpectedError
from headrace.learner.batches.step_ages import UnrollAge
from headrace.learner.batches.unroll_ends import EpisodeEnds
from headrace.learner.learner_config import LearnerConfig
from headrace.learner.models.model import Model
from headrace.learner.sharding.shard import shard

log = logging.getLogger(__name__)

# Bytes of a network whose ranks wait for each other longer than it is worth.
_SMALL = 4 << 20
_WAITS = "its ranks wait for each other at every layer, which is faster with a copy each"
# Seconds between two looks at who has come.
_LOOK_S = 0.02


class RanksError(ExpectedError):
    """Says that a collective failed: another rank is gone or stuck."""


class Facts(Struct, frozen=True, array_like=True):
    """Holds what one rank brings to a step, or all of them together."""

    ready: bool  # a batch is here
    stop: bool = False  # somebody asked to end
    late: bool = False  # time is up
    save: bool = False  # a checkpoint is due
    show: bool = False  # numbers for people are due
    steps: int = 0
    ended: int = 0
    ages: tuple[UnrollAge, ...] = ()  # of each unroll
    ends: tuple[EpisodeEnds, ...] = ()  # of each unroll
    evaluated: float | None = None  # the best mean of an evaluation; None = has heard of none


_DECODER = msgspec.msgpack.Decoder(Facts)


class Ranks:
    """Knows this process's place among the ranks, as torchrun says, and runs their collectives."""

    def __init__(self, *, timeout_s: float, cuda: bool) -> None:
        self.rank = int(os.environ.get("RANK", "0"))
        self.world = int(os.environ.get("WORLD_SIZE", "1"))
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        if self.world > 1:
            self.collective(lambda: self._join(timeout_s, cuda=cuda))

    def _join(self, timeout_s: float, *, cuda: bool) -> None:
        timeout = timedelta(seconds=timeout_s)
        store, *_ = next(rendezvous("env://", timeout=timeout))
        # Gloo beside NCCL: the exchange of facts must not touch the GPU.
        torch.distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if cuda else "gloo",
            store=fresh_store(store, self.rank, self.world, timeout_s),
            rank=self.rank,
            world_size=self.world,
            timeout=timeout,
        )

    def network_of(
        self, model: Model, target: Model | None, config: LearnerConfig, device: torch.device
    ) -> nn.Module:
        """Returns the network to run forward: its backward pass averages over the ranks. Spreads it
        and the target network over them if learner.shard says so."""
        if self.world == 1:
            if config.shard:
                log.warning("learner.shard: there is one rank, and it holds all of the network")
            return model
        if config.shard:
            held = sum(one.nbytes for one in model.parameters())
            if held < _SMALL and self.rank == 0:
                log.warning("learner.shard: the network has %.1f MB; %s", held / 1e6, _WAITS)
            for each in filter(None, (model, target)):
                shard(each, config, device)
            return model
        # Buffers are moved by every rank alike; there is nothing to send. torch 2.13 renames this.
        ddp: Any = nn.parallel.DistributedDataParallel
        renamed = "forward_sync_buffers" in inspect.signature(ddp).parameters
        still = {"forward_sync_buffers" if renamed else "broadcast_buffers": False}
        devices = [device.index] if device.type == "cuda" else None
        network: nn.Module = ddp(model, device_ids=devices, **still)
        return network

    def exchange(self, own: Facts) -> Facts:
        """Returns everybody's facts as one: ready when all are, the other flags when anyone is.

        Whatever leads to a further collective must be decided here: ranks have clocks of their own.
        """
        if self.world == 1:
            return own
        ranks = [_DECODER.decode(packed) for packed in self.gather(msgspec.msgpack.encode(own))]
        return Facts(
            ready=all(rank.ready for rank in ranks),
            stop=any(rank.stop for rank in ranks),
            late=any(rank.late for rank in ranks),
            save=any(rank.save for rank in ranks),
            show=any(rank.show for rank in ranks),
            steps=sum(rank.steps for rank in ranks),
            ended=sum(rank.ended for rank in ranks),
            ages=tuple(age for rank in ranks for age in rank.ages),
            # Of all ranks, because a stream's unrolls go to any of them.
            ends=tuple(end for rank in ranks for end in rank.ends),
            evaluated=next((r.evaluated for r in ranks if r.evaluated is not None), None),
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
            raise self._lost(error) from error

    @contextlib.contextmanager
    def exchanging(self) -> Iterator[None]:
        """Encloses work that may wait for other ranks in many places, as a network does that is
        spread over them: what torch raises when one is gone becomes a RanksError."""
        try:
            yield
        except RuntimeError as error:
            told = isinstance(error, torch.distributed.DistError) or "gloo" in str(error)
            if self.world == 1 or not told:
                raise
            raise self._lost(error) from error

    def _lost(self, error: RuntimeError) -> RanksError:
        first = str(error).splitlines()[0]
        return RanksError(
            f"rank {self.rank}: a collective failed, another rank is gone or stuck ({first});"
            " start the group again, it continues from its newest checkpoint"
        )


def fresh_store(store: Store, rank: int, world: int, timeout_s: float) -> Store:
    """Returns a part of the store that no earlier start of the group has written to, when all ranks
    are here; raises RuntimeError after `timeout_s`.

    torchrun keeps one store for all starts (torch 2.13: it caches the address between its rounds),
    and gloo and NCCL use the same keys each time: a rank that reads before the others have written
    would call a process that is gone. Counts of restarts do not help, each machine has its own. So
    rank r writes a random name, and rank 0 answers under a key made of it: no answer can be an old
    one. Rank 0 is done when each rank has written into the part.
    """
    own = os.urandom(8).hex()
    if rank:
        store.set(f"headrace/rank/{rank}", own)
        answer = f"headrace/answer/{own}"
        store.wait([answer], timedelta(seconds=timeout_s))
        part = PrefixStore(store.get(answer).decode(), store)
        part.set(f"here/{rank}", "")
        return part
    part = PrefixStore(own, store)
    missing = set(range(1, world))
    deadline = time.monotonic() + timeout_s
    while missing:
        for key in (f"headrace/rank/{other}" for other in missing):
            if store.check([key]):
                store.set(f"headrace/answer/{store.get(key).decode()}", own)
        missing -= {other for other in missing if part.check([f"here/{other}"])}
        if missing and time.monotonic() > deadline:
            raise RuntimeError(f"rank {min(missing)} did not come within {timeout_s:g} s")
        time.sleep(_LOOK_S)
    return part
