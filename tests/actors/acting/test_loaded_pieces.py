"""Checks that what is loaded piece by piece is what would be loaded whole."""

import random
from typing import Literal

import pytest
import torch
from torch import nn

from headrace.actors.acting.loaded_pieces import LoadedPieces
from headrace.broker.weights import blobs
from headrace.broker.weights.blobs import Blob
from headrace.broker.weights.common_chunks import Versions
from headrace.learner.config import ModelConfig
from headrace.learner.models.build import build
from headrace.learner.models.population.changed_rows import ChangedRows
from headrace.learner.models.population.population import Population
from headrace.learner.spaces import POLICY, Leaf, Spaces, discrete
from headrace.learner.weights import FlatWeights, WeightsError


class Mixed(nn.Module):
    """Holds tensors of several dtypes, one of them empty, one without dimensions."""

    def __init__(self, fill: float) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.full((9, 5), fill))
        self.register_buffer("b16", torch.full((2, 3), fill, dtype=torch.bfloat16))
        self.register_buffer("count", torch.tensor(int(fill), dtype=torch.int64))
        self.register_buffer("mask", torch.tensor([True, False, fill > 1]))
        self.register_buffer("f64", torch.full((2,), fill, dtype=torch.float64))
        self.register_buffer("nothing", torch.empty(0))


def blob(source: nn.Module, version: int) -> Blob:
    return Blob.of(version, "layout", FlatWeights(source).dump())


@pytest.mark.parametrize("size", [1, 3, 7, 16, 1000])
def test_pieces_that_changed(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever they are cut: in the middle of a number too."""
    monkeypatch.setattr(blobs, "CHUNK_BYTES", size)
    dice, source, copy = random.Random(size), Mixed(2.5), Mixed(1.0)
    held = LoadedPieces(copy)
    for version in range(40):
        made = blob(source, version)
        assert held.load(made) == made.announce.digest
        theirs = copy.state_dict()
        assert all(torch.equal(one, theirs[name]) for name, one in source.state_dict().items())
        with torch.no_grad():
            for name, tensor in source.state_dict().items():
                if tensor.numel() and dice.random() < 0.3:
                    at = dice.randrange(tensor.numel())
                    tensor.flatten()[at : at + 1] = name != "mask" and dice.randrange(9)


def test_after_weights_that_were_refused_the_next_are_loaded_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a piece of what was refused would stay, where it is again as it was before."""
    monkeypatch.setattr(blobs, "CHUNK_BYTES", 16)
    source, copy = Mixed(2.5), Mixed(1.0)
    held = LoadedPieces(copy)
    held.load(blob(source, 1))
    with torch.no_grad():
        source.rows[7, 3] = torch.nan
    with pytest.raises(WeightsError, match="not finite"):
        held.load(blob(source, 2))
    assert bool((copy.rows == 2.5).all())
    with torch.no_grad():
        source.rows[7, 3] = 2.5
        source.rows[0, 0] = 1.0
    right = blob(source, 3)
    assert held.load(right) == right.announce.digest


@pytest.mark.parametrize("wire", ["float32", "bfloat16"])
def test_rows_of_a_population(
    wire: Literal["float32", "bfloat16"], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its value heads move in every version, its rows in some."""
    monkeypatch.setattr(blobs, "CHUNK_BYTES", 256)
    leaves = (Leaf("obs", "<f4", (3,)), Leaf(POLICY, "<i8", (), (20,)))
    config = ModelConfig(kind="mlp", hidden=(8, 8), wire=wire, normalise_returns=True)
    source, copy = (
        build(config, Spaces(leaves, discrete(2), population=20), seed=seed) for seed in (1, 2)
    )
    assert isinstance(source, Population) and source.returns is not None
    dice, dumped, held = random.Random(2), ChangedRows(source), LoadedPieces(copy)
    versions = Versions("layout")
    for version in range(30):
        made = versions.of(version, dumped.dump())
        assert held.load(made) == made.announce.digest == FlatWeights(source).digest()
        sent = source.weights.bfloat16().float() if wire == "bfloat16" else source.weights
        assert torch.equal(sent, copy.get_parameter("weights"))
        with torch.no_grad():
            rows = torch.tensor(dice.sample(range(20), dice.randrange(4)), dtype=torch.int64)
            source.weights[rows] += 1.0
        source.touched[rows] = True
        source.returns.move(source.returns.mean + 0.1, source.returns.std * 1.1)


def test_another_network_is_refused() -> None:
    held = LoadedPieces(Mixed(1.0))
    with pytest.raises(WeightsError, match="these weights have 4 bytes"):
        held.load(Blob.of(1, "layout", bytes(4)))
