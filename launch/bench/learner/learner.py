"""The rate of a learner alone: the real train loop, fed with batches that are always there.

    resident   the batches lie in the device's memory already
    uploaded   they lie in memory of the host, as a receiver leaves them

Each network is measured at several sizes of batch, with the device deciding on the steps
(learner.graph) and with the host; on a CPU at small sizes only. ppo's steps on 64 samples are
measured as well, launched part by part and in one piece: captured (learner.graph) on a GPU,
compiled (learner.compile) on a CPU.
"""

import itertools
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from msgspec import structs

from headrace.launch.bench import output
from headrace.launch.bench.learner.ready_source import (
    LENGTH,
    SECONDS,
    WATCHED,
    Network,
    ReadySource,
    parts_of,
)
from headrace.launch.config.run_file import ConfigError
from headrace.learner.algorithms.optimiser_step import make_optimiser
from headrace.learner.batches.batch import Batch
from headrace.learner.config import AlgorithmConfig, ModelConfig
from headrace.learner.ranks import Facts
from headrace.learner.spaces import Action, Leaf, Part, Spaces, discrete
from headrace.learner.step.host_steps import HostSteps
from headrace.learner.train import train
from headrace.learner.train_parts import to_end
from headrace.learner.weights import FlatWeights

_TORQUES = Action((Part((), "<f4", (6,), low=(-1.0,) * 6, high=(1.0,) * 6),))
_BODY = Spaces((Leaf("obs", "<f4", (17,)),), _TORQUES)
_IMAGE = Spaces((Leaf("obs", "|u1", (84, 84), stack=4),), discrete(6))
_NUMBERS = Spaces((Leaf("obs", "<f4", (4,)),), discrete(2))
_COLUMNS = 16  # where steps are compiled; each epoch has as many parts


NETWORKS = {
    "mlp": Network(_NUMBERS, ModelConfig(kind="mlp"), (32, 64, 1024, 8192), (16, 64)),
    "nature": Network(_IMAGE, ModelConfig(kind="nature"), (8, 32, 128, 512), (4,)),
    "resnet": Network(_IMAGE, ModelConfig(kind="resnet"), (8, 32, 128, 512), (1,)),
    "resnet-lstm": Network(
        _IMAGE, ModelConfig(kind="resnet", core="lstm", separate=False), (32, 128, 512), (1,)
    ),
}
# Whose steps are compiled: as many numbers and torques as HalfCheetah has.
_CHEETAH = Network(_BODY, ModelConfig(kind="mlp", normalise_obs=True, normalise_returns=True))


def bench(names: Sequence[str]) -> None:
    """Measures these networks; none = all. Prints a row for each size of batch, then the line."""
    if unknown := [name for name in names if name not in NETWORKS]:
        raise ConfigError(f"headrace bench learner: no network {unknown[0]}: {', '.join(NETWORKS)}")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    output.parameters(networks=",".join(names or NETWORKS), device=device.type, length=LENGTH)
    rows = []
    for name in names or NETWORKS:
        network = NETWORKS[name]
        for columns in network.on_gpu if device.type == "cuda" else network.on_cpu:
            rows.append(_row(name, columns, device))
            print_row(rows[-1], head=len(rows) == 1)
    if one_piece := {} if names else _one_piece(device):
        print_row(one_piece, head=True)
    output.result("learner", {"rows": rows, "one_piece": one_piece})


def _one_piece(device: torch.device) -> dict[str, object]:
    """Measures ppo's steps in parts and in one piece."""
    source = ReadySource(_CHEETAH, _COLUMNS, device, resident=True)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        parts = parts_of(_CHEETAH, source, device, graph=False, folder=Path(folder))
        parts.algorithm = AlgorithmConfig(name="ppo", epochs=4, minibatches=_COLUMNS)
        optimiser = make_optimiser(parts.config, parts.model, lr=3e-4)
        steps = HostSteps(parts, parts.model, optimiser, FlatWeights(parts.model).dump)
        batches = itertools.cycle(source.batches)
        parted_us = _step_us(batches, steps)
        parts.config = structs.replace(parts.config, compile=True, graph=True)
        steps = HostSteps(parts, parts.model, optimiser, FlatWeights(parts.model).dump)
        began = time.perf_counter()
        while not steps.step.settled:
            _step_us(batches, steps, seconds=0.5)
        took_s, whole_us = time.perf_counter() - began, _step_us(batches, steps)
    return {
        "parts_us": round(parted_us),
        "one_piece_us": round(whole_us),
        "ratio": round(parted_us / whole_us, 2),
        "ready_s": round(took_s, 1),
    }


def _step_us(batches: Iterator[Batch], steps: HostSteps, *, seconds: float = SECONDS) -> float:
    """Returns the microseconds of an optimiser step, over some seconds."""
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        batch = next(batches)
        count += steps.begin(batch, Facts(ready=True, steps=batch.steps)).taken
    return 1e6 * (time.perf_counter() - began) / count


def _row(name: str, columns: int, device: torch.device) -> dict[str, object]:
    """Measures one network at one size of batch."""
    kinds = {"host": (False, True), "graph": (True, True), "uploaded": (True, False)}
    found = {
        kind: measure(NETWORKS[name], columns, device, graph=graph, resident=resident)
        for kind, (graph, resident) in kinds.items()
    }
    graph = found["graph"]
    return {
        "network": name,
        "samples": LENGTH * columns,
        "resident_per_s": round(graph.rate),
        "uploaded_per_s": round(found["uploaded"].rate),
        "host_per_s": round(found["host"].rate),
        "ratio": round(graph.rate / found["host"].rate, 2),
        "host_us": round(graph.host_s * 1e6, 1),
        "waits": round(graph.waits, 2),
    }


@dataclass(frozen=True, slots=True)
class Figures:
    """Holds what one measurement gave."""

    rate: float  # samples a second
    host_s: float  # of a step, that the host was not waiting for the device
    waits: float  # of the host for the device in a step, that torch knows of


def measure(
    network: Network, columns: int, device: torch.device, *, graph: bool, resident: bool
) -> Figures:
    """Trains for two seconds, and then some steps more in which waits are counted."""
    source = ReadySource(network, columns, device, resident=resident)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        parts = parts_of(network, source, device, graph=graph, folder=Path(folder))
        source.waited = lambda: parts.metrics.phase_seconds()["backward"]
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            to_end(train(parts))
    waits = sum("synchroni" in str(one.message) for one in told)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    rate = source.steps * LENGTH * columns / source.seconds
    waited = source.backward_s if graph else 0.0
    return Figures(rate, (source.seconds - waited) / source.steps, waits / WATCHED)


def print_row(row: Mapping[str, object], *, head: bool) -> None:
    """Prints the figures for people, a row for each network and size."""
    if head:
        print("  ".join(f"{name:>14}" for name in row))  # noqa: T201
    print("  ".join(f"{value!s:>14}" for value in row.values()), flush=True)  # noqa: T201
