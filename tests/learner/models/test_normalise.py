"""Running statistics: numpy over all data is the oracle."""

import copy
import functools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headrace.learner.algorithms.advantages import normalised
from headrace.learner.algorithms.loss_inputs import LossNorm
from headrace.learner.config import ModelConfig
from headrace.learner.models.build import Model, build
from headrace.learner.models.normalise import Normaliser, PopArt, explained, moments, value_fit
from headrace.learner.spaces import Leaf, Spaces, discrete
from headrace.learner.weights import FlatWeights
from tests.learner.together import check_statistics, together

LEAVES = (
    Leaf("speed", "float64", (2,)),
    Leaf("camera", "uint8", (10, 10)),
    Leaf("gear", "int64", (), categories=(3,)),
    Leaf("ram", "uint8", (3,), stack=2),
    Leaf("clock", "float32", ()),
    Leaf("allowed", "int8", (4,), mask=True),
)
SPACES = Spaces(LEAVES, discrete(4))
T, B = 5, 3


def observations(rng: np.random.Generator, *lead: int) -> dict[str, Tensor]:
    return {
        "speed": torch.from_numpy(rng.normal(1e4, 3.0, (*lead, 2))),
        "camera": torch.from_numpy(rng.integers(0, 256, (*lead, 10, 10), np.uint8)),
        "gear": torch.from_numpy(rng.integers(0, 3, lead)),
        "ram": torch.from_numpy(rng.integers(0, 256, (*lead, 2, 3), np.uint8)),
        "clock": torch.from_numpy(rng.exponential(0.1, lead).astype(np.float32)),
        "allowed": torch.from_numpy(rng.integers(0, 2, (*lead, 4), np.int8)),
    }


def flat(obs: dict[str, Tensor], live: Tensor) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The numbers of the rows that are live, row by row, in the order of the leaves."""
    rows = [
        torch.cat([obs[name][t, b].double().flatten() for name in ("speed", "ram", "clock")])
        for t, b in live.nonzero().tolist()
    ]
    return torch.stack(rows).numpy()


def alone(sums: Tensor) -> Tensor:
    return sums


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_updates_make_the_statistics_of_everything(ranks: int) -> None:
    rng = np.random.default_rng(0)

    def draw() -> tuple[dict[str, Tensor], Tensor, NDArray[Any]]:
        obs = observations(rng, T + 1, B)  # the last row belongs to the next unroll
        live = torch.from_numpy(rng.random((T, B)) < 0.7)
        dead = {**obs, "speed": obs["speed"].clone()}
        dead["speed"][:T][~live] = torch.inf
        return dead, live, flat(obs, live)

    check_statistics([Normaliser(LEAVES) for _ in range(ranks)], draw)


def exact(rows: NDArray[Any]) -> tuple[list[float], list[float]]:
    """The mean and the variance of each column, from fractions: no digit is lost."""
    wholes = [[Fraction(float(x)) for x in column] for column in rows.T]
    means = [sum(column, Fraction()) / len(column) for column in wholes]
    spreads = [
        sum((x - mean) ** 2 for x in column) / len(column)
        for column, mean in zip(wholes, means, strict=True)
    ]
    return list(map(float, means)), list(map(float, spreads))


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("far", [0.0, 1e4, 1e8, -1e10, 1e13])
def test_numbers_far_from_zero_keep_their_deviation(far: float, ranks: int) -> None:
    """From the first batch on, and when the numbers move as far later."""
    leaves = (Leaf("x", "float64", (2,)),)
    normalisers, seen = [Normaliser(leaves) for _ in range(ranks)], []
    rng = np.random.default_rng(0)
    for level in (far, far, -far):
        rows = [rng.normal(level, (1.0, 30.0), (T, B, 2)) for _ in range(ranks)]
        live = torch.from_numpy(rng.random((T, B)) < 0.8)
        together(
            [
                functools.partial(normaliser.update, {"x": torch.from_numpy(x)}, live)
                for normaliser, x in zip(normalisers, rows, strict=True)
            ]
        )
        seen += [x[live.numpy()] for x in rows]
        mean, var = exact(np.concatenate(seen))
        for normaliser in normalisers:
            np.testing.assert_allclose(normaliser.mean.numpy(), mean, rtol=1e-12, atol=1e-12)
            # A mean so far from zero has itself no more digits than these.
            wanted = max(1e-12, 1e-15 * abs(far))
            np.testing.assert_allclose(normaliser.var.numpy(), var, rtol=wanted)


@pytest.mark.parametrize("far", [0.0, 1e6, -1e10])
def test_returns_far_from_zero_keep_their_deviation(far: float) -> None:
    returns = PopArt(nn.Linear(3, 1))
    batches = [np.random.default_rng(n).normal(far, 1 + n, 64) for n in range(20)]
    for count, drawn in enumerate(batches, start=1):
        merge(returns, drawn)
        mean, var = exact(np.concatenate(batches[:count]).reshape(-1, 1))
        assert float(returns.mean) == pytest.approx(mean[0], rel=1e-12)
        assert float(returns.std) == pytest.approx(var[0] ** 0.5, rel=1e-5)


@pytest.mark.parametrize("far", [0.0, 1e6, -1e10])
def test_advantages_far_from_zero_keep_their_deviation(far: float) -> None:
    drawn = np.random.default_rng(0).normal(far, 3.0, (T, B))
    live = np.random.default_rng(1).random((T, B)) < 0.7
    (mean,), (var,) = exact(drawn[live].reshape(-1, 1))
    found = normalised(torch.from_numpy(drawn), torch.from_numpy(live).double(), LossNorm(steps=1))
    expected = np.where(live, (drawn - mean) / var**0.5, 0.0)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-5)


def test_numbers_are_normalised_and_nothing_else() -> None:
    rng = np.random.default_rng(0)
    normaliser = Normaliser(LEAVES)
    obs, live = observations(rng, T, B), torch.ones(T, B, dtype=torch.bool)
    obs["clock"][0, 0] = 1e6
    normaliser.update(obs, live, alone)
    obs["clock"][0, 0] = 1e9
    seen = normaliser(obs)
    for name in ("camera", "gear", "allowed"):
        assert seen[name] is obs[name]
    for name in ("speed", "ram", "clock"):
        x = obs[name].double().numpy()
        all_rows = {**obs, "clock": obs["clock"].clone()}[name].double()
        all_rows[all_rows == 1e9] = 1e6
        mean, std = all_rows.numpy().mean((0, 1)), all_rows.numpy().std((0, 1))
        expected = np.clip((x - mean) / np.sqrt(std**2 + 1e-8), -10, 10)
        assert seen[name].dtype == torch.float32 and seen[name].shape == obs[name].shape
        np.testing.assert_allclose(seen[name].numpy(), expected, atol=1e-5)
    assert seen["clock"].max() == 10


def test_before_anything_was_seen_it_changes_nothing() -> None:
    normaliser = Normaliser(LEAVES)
    obs = observations(np.random.default_rng(0), B)
    for name, value in normaliser(obs).items():
        torch.testing.assert_close(value, obs[name].to(value.dtype))


def test_nothing_live_and_nothing_finite_move_nothing() -> None:
    normaliser = Normaliser(LEAVES)
    obs, live = observations(np.random.default_rng(0), T, B), torch.ones(T, B, dtype=torch.bool)
    normaliser.update(obs, live, alone)
    before = {name: value.clone() for name, value in normaliser.state_dict().items()}
    normaliser.update(obs, ~live, alone)
    obs["speed"][0, 0, 0] = 1e300
    normaliser.update(obs, live, alone)
    for name, value in normaliser.state_dict().items():
        assert torch.equal(value, before[name]), name


def model(**settings: Any) -> Model:
    return build(ModelConfig(**settings), SPACES, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mlp", "resnet"])
def test_the_network_sees_normalised_numbers(kind: str) -> None:
    plain, normal = model(kind=kind), model(kind=kind, normalise_obs=True)
    obs = observations(np.random.default_rng(0), T, B)
    obs["allowed"] |= 1
    torch.testing.assert_close(plain(obs).params, normal(obs).params)
    assert normal.normaliser is not None
    normal.normaliser.update(obs, torch.ones(T, B, dtype=torch.bool), alone)
    seen = normal.normaliser(obs)
    torch.testing.assert_close(plain(seen).params, normal(obs).params)
    torch.testing.assert_close(plain(seen).value, normal(obs).value)
    assert not torch.allclose(plain(obs).value, normal(obs).value)


def test_images_and_categories_stay_as_they_are() -> None:
    spaces = Spaces((LEAVES[1], LEAVES[2]), discrete(2))
    assert build(ModelConfig(normalise_obs=True), spaces, seed=0).normaliser is None
    assert build(ModelConfig(normalise_obs=True), SPACES, seed=0).normaliser is not None


def merge(returns: PopArt, drawn: np.ndarray[Any, Any]) -> None:
    returns.merge(moments(torch.from_numpy(drawn).view(-1, 1), torch.ones(len(drawn)), alone))


def test_values_are_kept_when_the_statistics_move() -> None:
    network = model(normalise_returns=True)
    assert network.returns is not None
    obs = observations(np.random.default_rng(0), B)
    with torch.no_grad():
        network.value_head.weight.mul_(3)
        before = network(obs).value
        raw = network.value_head.weight.clone()
        rng = np.random.default_rng(1)
        for level in (100.0, -40.0, 3000.0):
            merge(network.returns, rng.normal(level, 7, 50))
            torch.testing.assert_close(network(obs).value, before, atol=2e-3, rtol=1e-4)
    assert not torch.allclose(network.value_head.weight, raw)
    assert network.returns.updates == 3


def test_the_statistics_of_returns() -> None:
    """A plain mean over the first hundred updates, then one that forgets."""
    returns = PopArt(nn.Linear(3, 1))
    rng = np.random.default_rng(0)
    batches = [rng.normal(level, 1 + level, 64) for level in range(100)]
    for drawn in batches:
        merge(returns, drawn)
    everything = np.concatenate(batches)
    assert float(returns.mean) == pytest.approx(everything.mean(), rel=1e-6)
    assert float(returns.std) == pytest.approx(everything.std(), rel=1e-6)
    mean = float(returns.mean)
    for _ in range(10):
        merge(returns, np.full(5, 200.0))
        mean += 0.01 * (200 - mean)
    assert float(returns.mean) == pytest.approx(mean, rel=1e-9)


def test_returns_without_spread_stay_finite_and_bad_ones_are_left_out() -> None:
    head = nn.Linear(3, 1)
    returns = PopArt(head)
    merge(returns, np.full(8, 5.0))
    assert 0 < float(returns.std) < 0.1 and float(returns.mean) == 5
    before = [p.clone() for p in (*head.parameters(), *returns.buffers())]
    merge(returns, np.zeros(0))
    merge(returns, np.array([np.inf, 1.0]))
    assert all(map(torch.equal, before, (*head.parameters(), *returns.buffers())))


def test_statistics_travel_with_the_weights() -> None:
    settings: dict[str, Any] = {"normalise_obs": True, "normalise_returns": True}
    source = model(**settings)
    assert source.normaliser is not None and source.returns is not None
    obs = observations(np.random.default_rng(0), T, B)
    source.normaliser.update(obs, torch.ones(T, B, dtype=torch.bool), alone)
    merge(source.returns, np.arange(9.0))
    for how in ("flat", "state_dict"):
        other = build(ModelConfig(**settings), SPACES, seed=1)
        if how == "flat":
            FlatWeights(other).load(FlatWeights(source).dump())
        else:
            other.load_state_dict(source.state_dict())
        assert torch.equal(other(obs).value, source(obs).value)
        assert torch.equal(other(obs).params, source(obs).params)
        assert other.normaliser is not None and other.normaliser.count == T * B
        assert other.returns is not None and other.returns.updates == 1


def test_a_copy_rescales_its_own_head() -> None:
    source = model(normalise_returns=True)
    copied = copy.deepcopy(source)
    obs = observations(np.random.default_rng(0), B)
    before = source.value_head.weight.clone()
    assert copied.returns is not None
    merge(copied.returns, np.arange(9.0))
    assert torch.equal(source.value_head.weight, before)
    torch.testing.assert_close(copied(obs).value, source(obs).value, atol=1e-5, rtol=1e-4)


def fit(values: Tensor, targets: Tensor, live: Tensor, ranks: int = 1) -> float:
    """The explained variance of steps that lie on so many ranks, as the losses and ranks do it."""
    share = live * ranks / live.sum()
    parts = [
        value_fit(*one)
        for one in zip(*(each.chunk(ranks) for each in (values, targets, share)), strict=True)
    ]
    means = {name: sum(part[name].item() for part in parts) / ranks for name in parts[0]}
    found = explained(means | {"entropy": 3.0})
    assert found.keys() == {"entropy", "explained_variance"}
    return found["explained_variance"]


@pytest.mark.parametrize("ranks", [1, 2])
def test_explained_variance_is_one_less_the_share_that_is_left(ranks: int) -> None:
    targets = torch.randn(400, generator=torch.Generator().manual_seed(1)) + 1000.0
    values = targets + 0.5 * torch.randn(400, generator=torch.Generator().manual_seed(2))
    live = torch.ones(400)
    live[::3] = 0.0
    values[::3] = 1e6  # dead ones may hold anything
    seen, right = values[live > 0], targets[live > 0]
    left = (right - seen).square().mean() / right.var(correction=0)
    assert fit(values, targets, live, ranks) == pytest.approx(1 - left.item(), rel=1e-3)


def test_explained_variance_at_its_ends() -> None:
    targets, live = torch.tensor([1.0, 2.0, 3.0]), torch.ones(3)
    assert fit(targets, targets, live) == pytest.approx(1)
    assert fit(torch.full((3,), 2.0), targets, live) == pytest.approx(0, abs=1e-6)
    assert fit(100 * targets, targets, live) == -1
    assert fit(targets, torch.full((3,), 7.0), live) == 0, "nothing varies"
    assert fit(targets, targets, torch.zeros(3).index_fill(0, torch.tensor([1]), 1)) == 0
