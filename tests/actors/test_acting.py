"""Acting in fewer bits: nearly the same policy, and what is recorded is the one that acted."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from actors.acting import Acting
from learner import vtrace
from learner.config import ModelConfig
from learner.models import categorical, precision
from learner.models.build import Model, build
from learner.spaces import Discrete, Leaf, Spaces
from learner.weights import FlatWeights

ACTIONS = 4
SPACES = Spaces((Leaf("obs", "uint8", (44, 44), stack=4),), Discrete(ACTIONS))
WITH_REST = Spaces((*SPACES.observation, Leaf("speed", "float32", (2,))), Discrete(ACTIONS))
PRECISIONS = ("float32", "bfloat16", "int8")

Obs = dict[str, NDArray[np.generic]]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads that wait for a busy core make drawing orthogonal weights 30 times slower."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def nature(spaces: Spaces = SPACES, *, seed: int = 0) -> Model:
    """Random weights whose policy has opinions: the initial head has none."""
    model = build(ModelConfig(kind="nature"), spaces, seed=seed)
    with torch.no_grad():
        model.policy_head.weight.mul_(100)
    return model


def observations(rows: int, *, seed: int = 0) -> Obs:
    rng = np.random.default_rng(seed)
    return {
        "obs": rng.integers(0, 256, (rows, 4, 44, 44), dtype=np.uint8),
        "speed": rng.normal(size=(rows, 2)).astype(np.float32),
    }


def softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    return torch.from_numpy(logits).softmax(-1).numpy()


@pytest.mark.parametrize("spaces", [SPACES, WITH_REST])
def test_fewer_bits_are_nearly_the_same_policy(spaces: Spaces) -> None:
    model = nature(spaces)
    obs = observations(32)
    exact = softmax(Acting(model, spaces, "float32").logits(obs))
    assert exact.std(axis=1).mean() > 0.05
    for kind, near in (("bfloat16", 0.01), ("int8", 0.03)):
        logits = Acting(model, spaces, kind).logits(obs)
        assert logits.dtype == np.float32 and logits.shape == (32, ACTIONS)
        gap = np.abs(softmax(logits) - exact).max()
        assert 0 < gap < near, kind


@pytest.mark.parametrize("kind", PRECISIONS)
def test_it_follows_the_model_when_told(kind: str) -> None:
    model, other = nature(WITH_REST), nature(WITH_REST, seed=1)
    obs = observations(8)
    acting = Acting(model, WITH_REST, kind)
    acting.logits(obs)
    model.load_state_dict(other.state_dict())
    acting.refresh()
    exact = softmax(Acting(other, WITH_REST, "float32").logits(obs))
    assert np.abs(softmax(acting.logits(obs)) - exact).max() < 0.03


@pytest.mark.parametrize("kind", PRECISIONS)
def test_one_row_and_nothing_else_of_the_batch(kind: str) -> None:
    """A row's logits must not depend on the rows beside it, once the ranges are known."""
    acting = Acting(nature(), SPACES, kind)
    obs = observations(8)
    for _ in range(3):  # the next batch but one that int8 measures is the 4th
        together = acting.logits(obs)
    alone = Acting(nature(), SPACES, kind)
    alone.logits(obs)
    alone.logits(obs)
    one = alone.logits({name: value[5:6] for name, value in obs.items()})
    np.testing.assert_allclose(one[0], together[5], atol=2e-3)


def test_int8_learns_the_ranges_of_brighter_batches() -> None:
    model = nature()
    bright = observations(8)
    dark = {"obs": bright["obs"] // 32}
    acting = Acting(model, SPACES, "int8")
    acting.logits(dark)
    exact = Acting(model, SPACES, "float32").logits(bright)
    acting.logits(bright)
    assert np.abs(softmax(acting.logits(bright)) - softmax(exact)).max() < 0.03


def test_mlp_acts_too() -> None:
    spaces = Spaces((Leaf("obs", "float32", (4,)),), Discrete(2))
    model = build(ModelConfig(obs_scale=(1, 3, 1, 1)), spaces, seed=0)
    obs: Obs = {"obs": np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)}
    exact = Acting(model, spaces, "float32").logits(obs)
    assert np.array_equal(Acting(model, spaces, "auto").logits(obs), exact)
    np.testing.assert_allclose(Acting(model, spaces, "bfloat16").logits(obs), exact, atol=1e-3)
    with pytest.raises(ValueError, match=r'"int8" needs model\.kind = "nature"; set it to "auto"'):
        Acting(model, spaces, "int8")


@pytest.mark.parametrize(("native", "kind"), [(True, "bfloat16"), (False, "float32")])
def test_auto(native: bool, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "native_bf16", lambda: native)
    model, obs = nature(), observations(4)
    expected = Acting(model, SPACES, kind).logits(obs)
    assert np.array_equal(Acting(model, SPACES, "auto").logits(obs), expected)


@pytest.mark.parametrize("kind", ["bfloat16", "int8"])
def test_recorded_log_probs_come_from_the_logits_that_acted(kind: str) -> None:
    model, obs = nature(), observations(64)
    acting = Acting(model, SPACES, kind)
    acting.logits(obs)
    acting.logits(obs)  # the next batch that int8 measures is the 4th
    action, logp = categorical.sample(acting.logits(obs), np.random.default_rng(0))

    def recomputed(network: Acting) -> NDArray[np.float32]:
        logits = torch.from_numpy(network.logits(obs))
        return categorical.log_prob(logits, torch.from_numpy(action)).numpy()

    # Of int8 this is the 4th batch, measured again: the same rows, so the same ranges.
    np.testing.assert_allclose(recomputed(acting), logp, atol=1e-5)
    gap = np.abs(recomputed(Acting(model, SPACES, "float32")) - logp).max()
    assert 1e-4 < gap < 0.1


def value_targets(
    exact: NDArray[np.float32],
    action: NDArray[np.int64],
    logp: NDArray[np.float32],
    reward: torch.Tensor,
) -> torch.Tensor:
    """Of one step that ends the episode, many times over, with nothing clipped."""
    columns = len(action)
    chosen = torch.from_numpy(action).view(1, columns)
    logits = torch.from_numpy(exact).expand(columns, ACTIONS)
    return vtrace.targets(
        log_rhos=categorical.log_prob(logits, chosen[0]).view(1, columns)
        - torch.from_numpy(logp).view(1, columns),
        rewards=reward[chosen],
        values=torch.full((2, columns), 0.7),
        discounts=torch.zeros(1, columns),
        continues=torch.zeros(1, columns),
        live=torch.ones(1, columns),
        trace=1.0, rho_clip=1e9, c_clip=1e9, pg_rho_clip=1e9,
    ).vs[0].double()  # fmt: skip


@pytest.mark.parametrize("acted_with", ["bfloat16", "int8", "coarse"])
def test_v_trace_corrects_the_rounding(acted_with: str) -> None:
    """Acted by rounded logits, targeted at the exact policy: right on average over many actions."""
    model, obs = nature(), observations(1)
    exact = Acting(model, SPACES, "float32").logits(obs)
    if acted_with == "coarse":
        acted = np.round(exact)
        assert not np.allclose(softmax(acted), softmax(exact), atol=0.03)
    else:
        acted = Acting(model, SPACES, acted_with).logits(obs)
    reward = torch.tensor([5.0, -2.0, 1.0, -7.0])
    right = float(torch.from_numpy(softmax(exact))[0].double() @ reward.double())

    rows = np.repeat(acted, 200_000, axis=0)
    action, logp = categorical.sample(rows, np.random.default_rng(0))
    targets = value_targets(exact, action, logp, reward)
    error = float(targets.std()) / len(action) ** 0.5
    assert abs(float(targets.mean()) - right) < 4 * error

    if acted_with == "coarse":  # what it would be, were the exact log-probs recorded
        wrong = categorical.log_prob(
            torch.from_numpy(exact).expand(len(action), ACTIONS), torch.from_numpy(action)
        ).numpy()
        biased = value_targets(exact, action, wrong, reward)
        assert abs(float(biased.mean()) - right) > 20 * error


# ---- few rows of a fully connected network ------------------------------------------------------


@pytest.mark.parametrize("activation", ["tanh", "relu", "elu"])
@pytest.mark.parametrize("hidden", [(), (8,), (64, 64)])
def test_few_rows_give_what_the_module_gives_whatever_its_weights(
    activation: Any, hidden: tuple[int, ...]
) -> None:
    spaces = Spaces((Leaf("b", "<f8", (2, 2)), Leaf("a", "|u1", (3,))), Discrete(3))
    config = ModelConfig(hidden=hidden, activation=activation, obs_scale=(1, 2, 3, 4, 5, 6, 7.0))
    model = build(config, spaces, seed=1)
    acting = Acting(model, spaces, "float32")
    rng = np.random.default_rng(0)
    flat = FlatWeights(build(config, spaces, seed=2))
    for body in (None, flat.dump()):
        if body is not None:
            FlatWeights(model).load(body)
            acting.refresh()
        for rows in (1, 7, 5000):  # the last takes the long way
            obs: dict[str, Any] = {
                "b": rng.normal(size=(rows, 2, 2)),
                "a": rng.integers(0, 255, (rows, 3)).astype(np.uint8),
            }
            with torch.no_grad():
                exact = model.policy({name: torch.from_numpy(rows) for name, rows in obs.items()})
            np.testing.assert_allclose(acting.logits(obs), exact.numpy(), atol=1e-5)
            assert acting.logits(obs).dtype == np.float32
