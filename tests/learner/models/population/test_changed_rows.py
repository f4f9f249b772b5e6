"""Checks that a population's chunks are what it holds, and that only what changed is copied."""

import random
from collections.abc import Iterator
from typing import Literal

import pytest
import torch

from headrace.broker.weights import blobs
from headrace.broker.weights.blobs import Blob
from headrace.broker.weights.common_chunks import Versions
from headrace.learner.config import ModelConfig
from headrace.learner.models.build import build
from headrace.learner.models.population.changed_rows import ChangedRows
from headrace.learner.models.population.population import Population
from headrace.learner.models.population.row_adam import RowAdam
from headrace.learner.spaces import POLICY, Leaf, Spaces, discrete
from headrace.learner.weights import FlatWeights, digest, layout_digest

POLICIES = 20
SPACES = Spaces(
    (Leaf("obs", "<f4", (3,)), Leaf(POLICY, "<i8", (), (POLICIES,))),
    discrete(2),
    population=POLICIES,
)


@pytest.fixture(params=[64, 1000, 1 << 17])
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Smaller than a row, than some rows, and than nothing."""
    monkeypatch.setattr(blobs, "CHUNK_BYTES", request.param)
    monkeypatch.setattr(blobs, "_MOST_CHUNKS", 100_000)
    yield request.param


def population(wire: Literal["float32", "bfloat16"] = "float32") -> Population:
    config = ModelConfig(kind="mlp", hidden=(8, 8), wire=wire, normalise_returns=True)
    made = build(config, SPACES, seed=1)
    assert isinstance(made, Population)
    return made


def train(of: Population, adam: RowAdam, *policies: int) -> None:
    """Make an optimiser step of these policies."""
    players = torch.tensor(policies)
    output = of({"obs": torch.randn(len(policies), 3), POLICY: players})
    adam.zero_grad()
    (output.value.square().sum() + output.params.square().sum()).backward()
    adam.step()
    assert of.returns is not None
    of.returns.move(of.returns.mean + 0.1, of.returns.std * 1.1)


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize("wire", ["float32", "bfloat16"])
def test_the_chunks_are_what_the_population_holds(wire: Literal["float32", "bfloat16"]) -> None:
    torch.manual_seed(0)
    dice, of = random.Random(2), population(wire)
    adam, rows = RowAdam(of, lr=0.01, eps=1e-8), ChangedRows(of)
    versions = Versions(layout_digest(of))
    for step in range(30):
        chunks = rows.dump()
        assert digest(b"".join(chunks)) == FlatWeights(of).digest()
        fresh = Blob.of(step, layout_digest(of), b"".join(chunks))
        assert versions.of(step, chunks).announce == fresh.announce
        for _ in range(dice.randrange(3)):  # several, or no steps from version to version
            train(of, adam, *dice.sample(range(POLICIES), dice.randint(1, 3)))


def test_chunks_of_rows_that_did_not_train_stay(chunk: int) -> None:
    of = population()
    adam, rows = RowAdam(of, lr=0.01, eps=1e-8), ChangedRows(of)
    before = rows.dump()
    assert not of.moved()
    train(of, adam, 3, 17)
    assert [row.tolist() for row in of.moved()] == of.weights[[3, 17]].tolist()
    after = rows.dump()
    same = sum(one is other for one, other in zip(before, after, strict=True))
    row = 4 * (len(of.weights[0]) - 9)  # without its value head
    assert len(before) - same <= 2 * (row // chunk + 2) + 1400 // chunk + 1
    assert rows.dump()[-1] is after[-1] or len(after) == 1
