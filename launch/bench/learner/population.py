"""The rate of a learner that trains a population, beside one policy and beside a loop.

    population   all policies in one matrix, those of a batch in one product for each layer
    one          one policy that trains on all steps of the same batch
    loop         a network and an optimiser for each policy of the batch, one after the other

Each column of 64 steps is played by another policy. The sizes of batch are columns: as many as
policies means that all of them train in each step.
"""

import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch

from headrace.broker.server.memory_guard import resident
from headrace.launch.bench import output
from headrace.launch.bench.learner.learner import print_row
from headrace.launch.bench.learner.ready_source import (
    LENGTH,
    SECONDS,
    Network,
    ReadySource,
    parts_of,
)
from headrace.learner.algorithms.loss_inputs import LossNorm
from headrace.learner.algorithms.optimiser_step import make_optimiser
from headrace.learner.batches.upload import sample_of
from headrace.learner.config import ModelConfig
from headrace.learner.models.build import build
from headrace.learner.spaces import POLICY, Leaf, Spaces, discrete
from headrace.learner.step.one_step import OneStep
from headrace.learner.train import train
from headrace.learner.train_parts import to_end
from headrace.learner.weights import Body, Buffer

_POLICIES = 1000
_COLUMNS = (16, 64, 256, 1000)  # a bare run has 16
_CPU = torch.device("cpu")
_MODEL = ModelConfig(kind="mlp")
_OBS = Leaf("obs", "<f4", (4,))
_ONE = Network(Spaces((_OBS,), discrete(2)), _MODEL)


def bench() -> None:
    """Measures batches of several sizes; prints a row for each, then the line."""
    output.parameters(policies=_POLICIES, length=LENGTH, hidden="64,64", device="cpu")
    rows = []
    for columns in _COLUMNS:
        rows.append(_row(columns))
        print_row(rows[-1], head=len(rows) == 1)
    output.result("population", {"rows": rows})


def _row(columns: int) -> dict[str, object]:
    leaves = (_OBS, Leaf(POLICY, "<i8", (), (_POLICIES,)))
    many = Network(Spaces(leaves, discrete(2), population=_POLICIES), _MODEL)
    one = _trained(_ONE, columns).rate  # first: what torch itself takes is nobody's growth
    trained = _trained(many, columns)
    return {
        "columns": columns,
        "population_per_s": round(trained.rate),
        "one_per_s": round(one),
        "loop_per_s": round(_looped(columns)),
        "ratio": round(trained.rate / one, 2),
        "state_mb": round(trained.held / 1e6, 1),
        "grown_mb": round(trained.grown / 1e6, 1),
        "sent_mb": round(trained.sent / 1e6, 1),
    }


class _Trained(NamedTuple):
    """Holds what a learner did, in the real train loop."""

    rate: float  # steps a second
    held: int  # bytes of parameters and optimiser
    grown: int  # bytes by which this process has grown
    sent: float  # bytes of a version that were not in the version before


class _Source(ReadySource):
    """Counts what of the weights differs from version to version."""

    before: tuple[Buffer, ...] = ()  # chunks of the newest version
    sent = 0  # bytes, without those of the first version
    versions = 0  # after the first

    def publish(self, version: int, body: Body) -> None:  # noqa: ARG002
        chunks = body if isinstance(body, tuple) else (body,)
        if self.before:
            known = {id(chunk) for chunk in self.before}
            self.sent += sum(len(chunk) for chunk in chunks if id(chunk) not in known)
            self.versions += 1
        self.before = chunks


def _trained(network: Network, columns: int) -> _Trained:
    before = most = resident()

    def ended() -> bool:
        nonlocal most
        most = max(most, resident())
        return source.ended

    source = _Source(network, columns, _CPU, resident=True)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        parts = parts_of(network, source, _CPU, graph=False, folder=Path(folder))
        parts.config = msgspec.structs.replace(parts.config, compile=False)
        parts.stopping = ended
        to_end(train(parts))
        held = 3 * sum(one.nbytes for one in parts.model.parameters())  # Adam has two of each
    rate = source.steps * LENGTH * columns / source.seconds
    return _Trained(rate, held, most - before, source.sent / max(1, source.versions))


def _looped(columns: int) -> float:
    """Returns steps a second where each column's policy is a network of its own."""
    source = ReadySource(_ONE, columns, _CPU, resident=True)
    whole = sample_of(source.batches[0].tensors, _ONE.spaces, previous=False, unrolls=1)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        parts = parts_of(_ONE, source, _CPU, graph=False, folder=Path(folder))
        parts.config = msgspec.structs.replace(parts.config, compile=False)
        steps = []
        for column in range(columns):
            parts.model = build(_ONE.model, _ONE.spaces, seed=column)
            optimiser = make_optimiser(parts.config, parts.model, lr=3e-4)
            own = whole.columns(slice(column, column + 1))
            steps.append((OneStep(parts, parts.model, optimiser), parts.model, own))
        norm, count = LossNorm(steps=LENGTH), 0
        began = time.perf_counter()
        while time.perf_counter() - began < SECONDS:
            for step, parts.model, own in steps:
                step(own, norm, most=LENGTH)
            count += columns
    return count * LENGTH / (time.perf_counter() - began)
