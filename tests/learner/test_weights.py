"""A module's state as bytes: exact, refused whole or loaded whole."""

from typing import cast

import msgspec
import pytest
import torch
from torch import nn

from headrace.learner import weights
from headrace.learner.config import ModelConfig
from headrace.learner.models.build import Model, build
from headrace.learner.spaces import Leaf, Spaces, discrete
from headrace.learner.weights import FlatWeights, WeightsError, is_finite

CARTPOLE = Spaces((Leaf("obs", "float32", (4,)),), discrete(2))


def mlp(seed: int, *, hidden: tuple[int, ...] = (64, 64)) -> Model:
    return build(ModelConfig(hidden=hidden), CARTPOLE, seed=seed)


class Mixed(nn.Module):
    """One tensor of every width, a scalar, an empty one, and one with gaps in memory."""

    def __init__(self, fill: float) -> None:
        super().__init__()
        self.b16 = nn.Parameter(torch.full((3,), fill, dtype=torch.bfloat16))
        self.f32 = nn.Parameter(torch.full((5, 3), float(fill)).t())
        self.register_buffer("count", torch.tensor(int(fill), dtype=torch.int64))
        self.register_buffer("mask", torch.tensor([True, False, fill > 1]))
        self.register_buffer("f64", torch.full((2,), fill, dtype=torch.float64))
        self.register_buffer("nothing", torch.empty(0))


def same(first: nn.Module, second: nn.Module) -> bool:
    one, two = first.state_dict(), second.state_dict()
    return all(torch.equal(one[name], two[name]) for name in one.keys() | two.keys())


def test_round_trip() -> None:
    source, copy = mlp(1), mlp(2)
    body = FlatWeights(source).dump()
    assert len(body) == sum(p.nbytes for p in source.parameters())
    assert not same(source, copy)
    FlatWeights(copy).load(body)
    assert same(source, copy)
    assert FlatWeights(copy).digest() == weights.digest(body)


def test_round_trip_of_every_kind_of_tensor() -> None:
    source, copy = Mixed(2.5), Mixed(1)
    FlatWeights(copy).load(memoryview(FlatWeights(source).dump()))
    assert same(source, copy)
    entries = weights.layout(source)
    assert [entry.name for entry in entries] == ["f64", "count", "f32", "nothing", "b16", "mask"]
    assert all(entry.offset % entry.dtype.itemsize == 0 for entry in entries)


def test_large_weights_are_copied_once_and_in_the_same_order() -> None:
    source = mlp(1, hidden=(700, 700))
    flat = FlatWeights(source)
    body = flat.dump()
    assert body.nbytes == flat.nbytes > 1 << 20
    flat.gather()
    assert bytes(body) == flat.buffer.numpy().tobytes()
    copy = mlp(2, hidden=(700, 700))
    FlatWeights(copy).load(body)
    assert same(source, copy)
    with torch.no_grad():
        next(source.parameters()).fill_(7.0)
    assert bytes(body) == FlatWeights(copy).dump()


def test_parameters_travel_as_bfloat16_and_statistics_as_they_are() -> None:
    """Loads what was sent, and no more exact: both ends' digests are of the rounded numbers."""
    config = ModelConfig(wire="bfloat16", normalise_obs=True, normalise_returns=True)
    source, copy = (build(config, CARTPOLE, seed=seed) for seed in (1, 2))
    exact = build(msgspec.structs.replace(config, wire="float32"), CARTPOLE, seed=1)
    body = FlatWeights(source).dump()
    parameters, whole = sum(p.nbytes for p in exact.parameters()), FlatWeights(exact).nbytes
    assert len(body) == whole - parameters // 2
    FlatWeights(copy).load(body)
    assert FlatWeights(copy).digest() == weights.digest(body)
    sent = dict(exact.named_parameters())
    for name, tensor in copy.state_dict().items():
        rounded = sent[name].bfloat16().float() if name in sent else exact.state_dict()[name]
        assert torch.equal(tensor, rounded), name
    assert weights.layout_digest(source) != weights.layout_digest(exact)


def test_a_dump_is_a_copy() -> None:
    model = mlp(1)
    body = FlatWeights(model).dump()
    before = weights.digest(body)
    with torch.no_grad():
        next(model.parameters()).add_(1)
    assert weights.digest(body) == before != FlatWeights(model).digest()


def test_flat_weights_follows_the_module_through_an_optimiser() -> None:
    model = mlp(1)
    flat = FlatWeights(model)
    before = flat.digest()
    optimiser = torch.optim.Adam(model.parameters())
    model({"obs": torch.ones(4)}).value.backward()
    optimiser.step()
    assert flat.digest() != before
    assert flat.digest() == FlatWeights(model).digest()


def test_loading_keeps_the_parameters_themselves() -> None:
    model = mlp(1)
    parameters = list(model.parameters())
    FlatWeights(model).load(FlatWeights(mlp(2)).dump())
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    assert all(p.requires_grad for p in parameters)


def test_layout_digest_tells_modules_apart() -> None:
    assert weights.layout_digest(mlp(1)) == weights.layout_digest(mlp(2))
    assert weights.layout_digest(mlp(1)) != weights.layout_digest(mlp(1, hidden=(64,)))
    assert weights.layout_digest(mlp(1)) != weights.layout_digest(mlp(1).to(torch.bfloat16))
    assert len(weights.layout_digest(mlp(1))) == 16


@pytest.mark.parametrize("change", [-1, 1, -36620])
def test_a_wrong_size_is_refused(change: int) -> None:
    model = mlp(1)
    body = FlatWeights(mlp(2)).dump()
    wrong = body[:change] if change < 0 else bytes(body) + bytes(change)
    before = FlatWeights(model).digest()
    with pytest.raises(
        WeightsError, match=rf"have {36620 + change} bytes, this module needs 36620"
    ):
        FlatWeights(model).load(wrong)
    assert FlatWeights(model).digest() == before


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused_whole(bad: float) -> None:
    source, model = Mixed(2.5), Mixed(1)
    with torch.no_grad():
        source.b16[1] = bad
    before = FlatWeights(model).digest()
    with pytest.raises(WeightsError, match="b16 holds a number that is not finite"):
        FlatWeights(model).load(FlatWeights(source).dump())
    assert FlatWeights(model).digest() == before
    FlatWeights(model).load(FlatWeights(source).dump(), check_finite=False)
    assert not cast(torch.Tensor, model.b16).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_finite_numbers_whose_norm_overflows_are_finite(dtype: torch.dtype) -> None:
    large = torch.full((5,), torch.finfo(dtype).max, dtype=dtype)
    assert is_finite(large)
    assert is_finite(torch.arange(3))
    for bad in (float("nan"), float("inf"), -float("inf")):
        large[2] = bad
        assert not is_finite(large)


def test_a_module_without_state() -> None:
    assert FlatWeights(nn.Identity()).dump().nbytes == 0
    FlatWeights(nn.Identity()).load(b"")
