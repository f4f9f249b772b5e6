"""Feeds a train loop with batches that are always there."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from prometheus_client import CollectorRegistry

from headrace.broker.peers.learner_ends import Windows
from headrace.broker.peers.objections import Objection
from headrace.broker.protocol.messages import Deliver
from headrace.learner.batches.batch import Batch
from headrace.learner.batches.make_batch import make_batch
from headrace.learner.checkpoints.config import CheckpointConfig
from headrace.learner.config import AlgorithmConfig, ModelConfig, UnrollConfig
from headrace.learner.learner_config import LearnerConfig
from headrace.learner.metrics import LearnerMetrics
from headrace.learner.models.build import build
from headrace.learner.progress import Progress
from headrace.learner.ranks import Ranks
from headrace.learner.spaces import POLICY, Spaces
from headrace.learner.train_parts import Goal, TrainParts
from headrace.learner.weights import Body

LENGTH = 64  # steps of an unroll
WATCHED = 10  # batches after the clock has stopped, in which waits are counted
SECONDS = 2.0  # that it runs
_WARM = 10  # batches before it starts


class Network(NamedTuple):
    """Holds a network to measure, and how many columns of 64 steps its batches have."""

    spaces: Spaces
    model: ModelConfig
    on_gpu: tuple[int, ...] = ()
    on_cpu: tuple[int, ...] = ()


class ReadySource:
    """Is a train loop's source of unrolls that always has the next batch."""

    def __init__(
        self, network: Network, columns: int, device: torch.device, *, resident: bool
    ) -> None:
        unroll = UnrollConfig(length=LENGTH, envs=columns)
        self._cuda = device.type == "cuda"
        self.batches = [
            _filled(
                make_batch(network.spaces, unroll, network.model, unrolls=1, pinned=self._cuda),
                at,
                network.spaces.population,
            )
            for at in range(3)
        ]
        if resident:
            for batch in self.batches:
                batch.tensors = {name: t.to(device) for name, t in batch.tensors.items()}
        self._count = 0  # batches trained
        self._began = 0.0  # when the clock started
        self._watched = 0  # batches since it stopped: waits are counted
        self.waited: Callable[[], float] = lambda: 0.0  # seconds in which the host waited, so far
        self.ended = False
        # What was measured.
        self.steps, self.seconds, self.backward_s = 0, 0.0, 0.0

    def next(self, timeout_s: float) -> Batch | None:  # noqa: ARG002 - it is there already
        return self.batches.pop(0) if self.batches and not self.ended else None

    def trained(self, batch: Batch, *, version: int) -> None:  # noqa: ARG002
        self.batches.append(batch)
        self._count += 1
        now = time.perf_counter()
        if self._count == _WARM:
            self._began, self.backward_s = now, self.waited()
        elif self.seconds:
            self._watched += 1
            if self._watched > WATCHED:
                self.ended = True
                self._warn_of_waits(False)
        elif self._count >= _WARM + 5 and now - self._began > SECONDS:
            self.steps, self.seconds = self._count - _WARM, now - self._began
            self.backward_s = self.waited() - self.backward_s
            self._warn_of_waits(True)

    def _warn_of_waits(self, wanted: bool) -> None:
        if self._cuda:
            torch.cuda.set_sync_debug_mode("warn" if wanted else "default")

    def reject(self, _: Batch, places: Sequence[int], objection: Objection, /) -> None:
        raise AssertionError(f"made-up unrolls are sound: {places}, {objection}")

    def refill(self, batch: Batch) -> None:
        raise AssertionError(f"made-up unrolls are sound: {batch.keys}")

    def publish(self, version: int, body: Body) -> None:
        """Does nothing: nobody plays."""

    def windows(self) -> Windows:
        return []

    def stats(self, stats: dict[str, float]) -> None:
        """Does nothing: nobody watches."""


def _filled(batch: Batch, number: int, population: int) -> Batch:
    """Fills a batch with what an untrained policy might have met."""
    rng = np.random.default_rng(number)
    for name, tensor in batch.tensors.items():
        array = tensor.numpy()
        if name.startswith("obs.") and array.dtype == np.uint8:
            array[:] = rng.integers(0, 256, array.shape, np.uint8)
        elif name == f"obs.{POLICY}":  # another one in each column, as long as there are enough
            array[:] = np.resize(rng.permutation(population), array.shape[1])
        elif name == "action":
            array[:] = rng.integers(0, 2, array.shape)
        elif name.startswith("obs.") or name == "reward":
            array[:] = rng.standard_normal(array.shape, np.float32)
        elif name == "logp":
            array[:] = -1.0
    steps = batch.tensors["reward"].numel()
    batch.messages = [
        Deliver(
            tag=0, attempt=1, actor="made-up", inc=1, stream=0, seq=number, floor=0,
            version_min=0, version_max=0, steps=steps, digest=0, ended=0, episodes=(),
        )
    ]  # fmt: skip
    return batch


def parts_of(
    network: Network, source: ReadySource, device: torch.device, *, graph: bool, folder: Path
) -> TrainParts:
    """Returns the parts of a train loop that trains this network until the source has ended."""
    return TrainParts(
        algorithm=AlgorithmConfig(name="impala"),
        config=LearnerConfig(graph=graph, progress_s=0),
        saving=CheckpointConfig(every_s=1e9),
        goal=Goal(None, None, None),
        ranks=Ranks(timeout_s=60.0, cuda=device.type == "cuda"),
        feed=source,
        model=build(network.model, network.spaces, seed=1).to(device),
        target=None,
        gap=None,
        progress=Progress(population=network.spaces.population),
        metrics=LearnerMetrics(CollectorRegistry()),
        device=device,
        folder=folder,
        spaces=network.spaces,
        previous=False,
        identity={},
        resume=None,
        stopping=lambda: source.ended,
        seed=1,
        started=time.monotonic(),
    )
