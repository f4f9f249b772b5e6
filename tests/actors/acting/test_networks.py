"""Acting in fewer bits: nearly the same policy, and what is recorded is the one that acted."""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from headrace.actors.acting.networks import ActingNetwork
from headrace.learner.algorithms import vtrace
from headrace.learner.config import ModelConfig
from headrace.learner.models import categorical, precision
from headrace.learner.models.build import Model, build
from headrace.learner.spaces import POLICY, Action, Leaf, Part, Spaces, discrete
from headrace.learner.weights import FlatWeights

pytestmark = pytest.mark.usefixtures("one_thread")

ACTIONS = 4
SPACES = Spaces((Leaf("obs", "uint8", (44, 44), stack=4),), discrete(ACTIONS))
WITH_REST = Spaces((*SPACES.observation, Leaf("speed", "float32", (2,))), discrete(ACTIONS))
PRECISIONS = ("float32", "bfloat16", "int8")

Obs = dict[str, NDArray[np.generic]]


def nature(spaces: Spaces = SPACES, *, seed: int = 0) -> Model:
    """Random weights whose policy has opinions: the initial head has none."""
    model = build(ModelConfig(kind="nature", separate=False), spaces, seed=seed)
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
    exact = softmax(ActingNetwork(model, spaces, "float32").params(obs)[0])
    assert exact.std(axis=1).mean() > 0.05
    for kind, near in (("bfloat16", 0.01), ("int8", 0.03)):
        logits = ActingNetwork(model, spaces, kind).params(obs)[0]
        assert logits.dtype == np.float32 and logits.shape == (32, ACTIONS)
        gap = np.abs(softmax(logits) - exact).max()
        assert 0 < gap < near, kind


@pytest.mark.parametrize("kind", PRECISIONS)
def test_it_follows_the_model_when_told(kind: str) -> None:
    model, other = nature(WITH_REST), nature(WITH_REST, seed=1)
    obs = observations(8)
    acting = ActingNetwork(model, WITH_REST, kind)
    acting.params(obs)
    model.load_state_dict(other.state_dict())
    acting.refresh()
    exact = softmax(ActingNetwork(other, WITH_REST, "float32").params(obs)[0])
    assert np.abs(softmax(acting.params(obs)[0]) - exact).max() < 0.03


@pytest.mark.parametrize("kind", PRECISIONS)
def test_one_row_and_nothing_else_of_the_batch(kind: str) -> None:
    """A row's logits must not depend on the rows beside it, once the ranges are known."""
    acting = ActingNetwork(nature(), SPACES, kind)
    obs = observations(8)
    for _ in range(3):  # the next batch but one that int8 measures is the 4th
        together = acting.params(obs)[0]
    alone = ActingNetwork(nature(), SPACES, kind)
    alone.params(obs)
    alone.params(obs)
    one = alone.params({name: value[5:6] for name, value in obs.items()})[0]
    np.testing.assert_allclose(one[0], together[5], atol=2e-3)


def test_int8_learns_the_ranges_of_brighter_batches() -> None:
    model = nature()
    bright = observations(8)
    dark = {"obs": bright["obs"] // 32}
    acting = ActingNetwork(model, SPACES, "int8")
    acting.params(dark)
    exact = ActingNetwork(model, SPACES, "float32").params(bright)[0]
    acting.params(bright)
    assert np.abs(softmax(acting.params(bright)[0]) - softmax(exact)).max() < 0.03


def test_mlp_acts_too() -> None:
    spaces = Spaces((Leaf("obs", "float32", (4,)),), discrete(2))
    model = build(ModelConfig(obs_scale=(1, 3, 1, 1)), spaces, seed=0)
    obs: Obs = {"obs": np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)}
    exact = ActingNetwork(model, spaces, "float32").params(obs)[0]
    assert np.array_equal(ActingNetwork(model, spaces, "auto").params(obs)[0], exact)
    np.testing.assert_allclose(
        ActingNetwork(model, spaces, "bfloat16").params(obs)[0], exact, atol=1e-3
    )


@pytest.mark.parametrize(("native", "kind"), [(True, "bfloat16"), (False, "float32")])
def test_auto(native: bool, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "native_bf16", lambda: native)
    model, obs = nature(), observations(4)
    expected = ActingNetwork(model, SPACES, kind).params(obs)[0]
    assert np.array_equal(ActingNetwork(model, SPACES, "auto").params(obs)[0], expected)


@pytest.mark.parametrize("kind", ["bfloat16", "int8"])
def test_recorded_log_probs_come_from_the_logits_that_acted(kind: str) -> None:
    model, obs = nature(), observations(64)
    acting = ActingNetwork(model, SPACES, kind)
    acting.params(obs)
    acting.params(obs)  # the next batch that int8 measures is the 4th
    action, logp = categorical.sample(acting.params(obs)[0], np.random.default_rng(0))

    def recomputed(network: ActingNetwork) -> NDArray[np.float32]:
        logits = torch.from_numpy(network.params(obs)[0])
        return categorical.log_prob(logits, torch.from_numpy(action)).numpy()

    # Of int8 this is the 4th batch, measured again: the same rows, so the same ranges.
    np.testing.assert_allclose(recomputed(acting), logp, atol=1e-5)
    gap = np.abs(recomputed(ActingNetwork(model, SPACES, "float32")) - logp).max()
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
    return (
        vtrace.targets(
            log_rhos=categorical.log_prob(logits, chosen[0]).view(1, columns)
            - torch.from_numpy(logp).view(1, columns),
            rewards=reward[chosen],
            values=torch.full((2, columns), 0.7),
            discounts=torch.zeros(1, columns),
            continues=torch.zeros(1, columns),
            live=torch.ones(1, columns),
            trace=1.0,
            rho_clip=1e9,
            c_clip=1e9,
            pg_rho_clip=1e9,
        )
        .vs[0]
        .double()
    )


@pytest.mark.parametrize("acted_with", ["bfloat16", "int8", "coarse"])
def test_v_trace_corrects_the_rounding(acted_with: str) -> None:
    """Acted by rounded logits, targeted at the exact policy: right on average over many actions."""
    model, obs = nature(), observations(1)
    exact = ActingNetwork(model, SPACES, "float32").params(obs)[0]
    if acted_with == "coarse":
        acted = np.round(exact)
        assert not np.allclose(softmax(acted), softmax(exact), atol=0.03)
    else:
        acted = ActingNetwork(model, SPACES, acted_with).params(obs)[0]
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
    spaces = Spaces((Leaf("b", "<f8", (2, 2)), Leaf("a", "|u1", (3,))), discrete(3))
    config = ModelConfig(hidden=hidden, activation=activation, obs_scale=(1, 2, 3, 4, 5, 6, 7.0))
    model = build(config, spaces, seed=1)
    acting = ActingNetwork(model, spaces, "float32")
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
                exact, _ = model.policy({name: torch.from_numpy(x) for name, x in obs.items()})
            np.testing.assert_allclose(acting.params(obs)[0], exact.numpy(), atol=1e-5)
            assert acting.params(obs)[0].dtype == np.float32


def numbers(rows: int, *, seed: int = 0) -> Obs:
    rng = np.random.default_rng(seed)
    return {
        "b": rng.normal(1e5, 3.0, (rows, 2)),
        "camera": rng.integers(0, 256, (rows, 3, 3)).astype(np.uint8),
        "a": rng.normal(0, 1e-3, rows).astype(np.float32),
        "previous.numbers": rng.normal(size=(rows, 2)).astype(np.float32),
        "previous.reward": rng.normal(size=rows).astype(np.float32),
    }


def tensors(obs: Obs) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(value) for name, value in obs.items()}


def moved(model: Model, obs: Obs) -> None:
    """Statistics and deviations as training leaves them."""
    assert model.normaliser is not None
    rows = torch.ones(len(next(iter(obs.values()))), dtype=torch.bool)
    model.normaliser.update(tensors(obs), rows, lambda sums: sums)
    if model.log_std is not None:
        nn.init.normal_(model.log_std)


BOX = Action((Part((), "float32", (2,), low=(-1.0, -1.0), high=(1.0, 1.0)),))
ARM = Spaces((Leaf("b", "<f8", (2,)), Leaf("camera", "|u1", (3, 3)), Leaf("a", "<f4", ())), BOX)


def check_both_ways(
    model: Model,
    other: Model,
    spaces: Spaces,
    seen: Callable[[int], Obs],
    *,
    atol: float,
    rtol: float,
) -> None:
    """Check that few rows and many give what the module gives, before and after new weights."""
    acting = ActingNetwork(model, spaces, "float32")
    assert acting.quick
    for told in (False, True):
        if told:
            FlatWeights(model).load(FlatWeights(other).dump())
            acting.refresh()
        for rows in (1, 7, 5000):  # the last takes the long way
            obs = seen(rows)
            with torch.no_grad():
                exact, _ = model.policy(tensors(obs))
            params, memory = acting.params(obs)
            assert memory is None and params.dtype == np.float32 and params.shape == (rows, 4)
            np.testing.assert_allclose(params, exact.numpy(), atol=atol, rtol=rtol)


@pytest.mark.parametrize("std", ["free", "network"])
@pytest.mark.parametrize("scale", [(), (1.0,) * 5 + (2.0,) * 7])
def test_few_rows_normalised_and_with_deviations(std: Any, scale: tuple[float, ...]) -> None:
    config = ModelConfig(kind="mlp", normalise_obs=True, std=std, previous=True, obs_scale=scale)
    model, other = build(config, ARM, seed=0), build(config, ARM, seed=1)
    moved(other, numbers(50, seed=3))
    with torch.no_grad():
        other.policy_head.weight.mul_(100)

    def seen(rows: int) -> Obs:
        obs = numbers(rows)
        obs["a"][0] = 1e3  # farther than ten deviations
        return obs

    check_both_ways(model, other, ARM, seen, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("std", ["free", "network"])
@pytest.mark.parametrize("hidden", [(), (8,), (8, 8)])
@pytest.mark.parametrize("scale", [(), (1.0,) * 5 + (2.0,) * 7])
def test_few_rows_of_a_population(std: Any, hidden: Any, scale: tuple[float, ...]) -> None:
    """Each by the policy that plays it, some of the same one."""
    config = ModelConfig(
        kind="mlp", normalise_obs=not scale, std=std, obs_scale=scale, hidden=hidden
    )
    many = msgspec.structs.replace(
        ARM, observation=(*ARM.observation, Leaf(POLICY, "<i8", (), (9,))), population=9
    )
    model, other = build(config, many, seed=0), build(config, many, seed=1)
    with torch.no_grad():
        other.get_parameter("weights").mul_(3.0)
        if not scale:
            moved(other, numbers(50, seed=3))

    def seen(rows: int) -> Obs:
        return numbers(rows) | {POLICY: np.random.default_rng(rows).integers(0, 9, rows)}

    check_both_ways(model, other, many, seen, atol=1e-4, rtol=1e-3)


# ---- memory, masks, statistics -------------------------------------------------------------------

MASKED = Spaces(
    (*WITH_REST.observation, Leaf("allowed", "int8", (ACTIONS,), mask=True)), discrete(ACTIONS)
)


def masked(rows: int) -> Obs:
    allowed = np.ones((rows, ACTIONS), np.int8)
    allowed[::2, 1] = 0
    return {**observations(rows), "allowed": allowed}


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
@pytest.mark.parametrize(("encoder", "core"), [("mlp", "lstm"), ("resnet", "gru")])
def test_the_memory_goes_round(encoder: str, core: Any, kind: str) -> None:
    config = ModelConfig(kind=encoder, core=core, core_units=5, hidden=(8,), normalise_obs=True)
    model = build(config, MASKED, seed=0)
    moved(model, observations(16, seed=1))
    acting = ActingNetwork(model, MASKED, kind)
    assert not acting.quick
    memory: NDArray[np.float32] | None = None
    carried: torch.Tensor | None = None
    for _ in range(3):
        params, memory = acting.params(masked(6), memory)
        with torch.no_grad():
            exact, carried = model.policy(tensors(masked(6)), carried)
        assert memory is not None and carried is not None
        assert memory.dtype == np.float32 and memory.shape == (6, model.memory)
        near = 1e-6 if kind == "float32" else 0.03
        np.testing.assert_allclose(params, exact.numpy(), atol=near)
        np.testing.assert_allclose(memory, carried.numpy(), atol=near)
        assert (params[::2, 1] == -1e9).all()


@pytest.mark.parametrize("kind", PRECISIONS)
def test_statistics_and_masks_in_all_precisions(kind: str) -> None:
    config = ModelConfig(kind="nature", normalise_obs=True, normalise_returns=True)
    model, other = build(config, MASKED, seed=0), build(config, MASKED, seed=1)
    with torch.no_grad():
        other.policy_head.weight.mul_(100)
    obs = masked(8)
    obs["speed"] = obs["speed"] * 50 + 300
    moved(other, {**obs, "speed": obs["speed"] + 20})
    acting = ActingNetwork(model, MASKED, kind)
    acting.params(obs)
    model.load_state_dict(other.state_dict())
    acting.refresh()
    with torch.no_grad():
        exact = other.policy(tensors(obs))[0].numpy()
    params, memory = acting.params(obs)
    assert memory is None
    assert np.abs(softmax(params) - softmax(exact)).max() < 0.03
    assert (softmax(params)[::2, 1] == 0).all()


def test_a_box_in_all_precisions() -> None:
    spaces = Spaces(SPACES.observation, BOX)
    model = build(ModelConfig(kind="nature", std_init=0.3), spaces, seed=0)
    obs = observations(4)
    del obs["speed"]
    for kind in PRECISIONS:
        params, _ = ActingNetwork(model, spaces, kind).params(obs)
        np.testing.assert_allclose(params[:, 2:], np.log(0.3), rtol=1e-6)
        with torch.no_grad():
            np.testing.assert_allclose(params, model.policy(tensors(obs))[0], atol=1e-3)


TWO = Spaces((*SPACES.observation, Leaf("map", "uint8", (40, 40))), discrete(ACTIONS))


@pytest.mark.parametrize(
    ("config", "spaces", "words"),
    [
        (ModelConfig(kind="mlp"), SPACES, r'"int8" needs model\.kind = "nature"; set it to "auto"'),
        (ModelConfig(kind="resnet"), SPACES, r'"int8" needs model\.kind = "nature"'),
        (ModelConfig(kind="nature"), TWO, r'"int8" needs an observation with one image; set it'),
        (ModelConfig(kind="nature", core="gru"), SPACES, r'"int8" needs model\.core = "none"; set'),
        (
            ModelConfig(kind="nature", normalise_images=True),
            SPACES,
            r'"int8" needs model\.normalise_images = false; set it to "auto"',
        ),
    ],
)
def test_what_bytes_cannot_do(config: ModelConfig, spaces: Spaces, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ActingNetwork(build(config, spaces, seed=0), spaces, "int8")


def test_only_plain_numbers_are_quick() -> None:
    number = Leaf("obs", "float32", (4,))
    mask = Leaf("allowed", "int8", (2,), mask=True)
    for config, leaves, quick in (
        (ModelConfig(), (number,), True),
        (ModelConfig(core="gru"), (number,), False),
        (ModelConfig(previous=True), (number,), False),  # an action has categories
        (ModelConfig(), (number, mask), False),
        (ModelConfig(), (Leaf("obs", "int64", (), (4,)),), False),
    ):
        spaces = Spaces(leaves, discrete(2))
        assert ActingNetwork(build(config, spaces, seed=0), spaces, "auto").quick is quick


class Own(nn.Module):
    """An encoder whose insides nobody knows: no layer of it may be changed."""

    units = 8

    def __init__(self, leaves: tuple[Leaf, ...], rng: torch.Generator) -> None:
        super().__init__()
        self.layer = nn.Linear(sum(leaf.shape[0] for leaf in leaves), self.units)
        nn.init.normal_(self.layer.weight, generator=rng)

    def forward(self, obs: dict[str, torch.Tensor]) -> torch.Tensor:
        wide: torch.Tensor = self.layer(obs["obs"].float())
        return functional.linear(wide, torch.eye(8, dtype=wide.dtype))


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_an_encoder_of_the_user_s_own(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("own_encoder")
    module.__dict__["Own"] = Own
    monkeypatch.setitem(sys.modules, "own_encoder", module)
    spaces = Spaces((Leaf("obs", "float32", (4,)),), discrete(2))
    config = ModelConfig(kind="own_encoder:Own")
    model, other = build(config, spaces, seed=0), build(config, spaces, seed=1)
    acting = ActingNetwork(model, spaces, kind)
    obs: Obs = {"obs": np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)}
    acting.params(obs)
    model.load_state_dict(other.state_dict())
    acting.refresh()
    with torch.no_grad():
        exact = other.policy(tensors(obs))[0].numpy()
    np.testing.assert_allclose(acting.params(obs)[0], exact, atol=1e-3)
