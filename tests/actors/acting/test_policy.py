"""The acting policy: whose weights it uses, what it says of them, and how its dice fall."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from headrace.actors.acting.policy import Policy
from headrace.broker.weights.blobs import Blob
from headrace.learner.config import ModelConfig
from headrace.learner.models.build import Model, build
from headrace.learner.spaces import Leaf, Spaces, discrete
from headrace.learner.weights import FlatWeights, WeightsError, layout_digest

SPACES = Spaces((Leaf("obs", "<f4", (4,)),), discrete(3))
CONFIG = ModelConfig(hidden=(8,))


def trained(seed: int, config: ModelConfig = CONFIG) -> Model:
    """A network with opinions: a fresh one likes all actions alike."""
    model = build(config, SPACES, seed=seed)
    with torch.no_grad():
        for number in model.parameters():
            number.mul_(5.0).add_(0.1)
    return model


def blob(model: Model, version: int = 1) -> Blob:
    return Blob.of(version, layout_digest(model), FlatWeights(model).dump())


def log_probs(
    model: Model, rows: np.ndarray[tuple[int, ...], np.dtype[np.float32]]
) -> torch.Tensor:
    with torch.no_grad():
        logits, _ = model.policy({"obs": torch.from_numpy(rows)})
        return torch.log_softmax(logits.double(), dim=-1)


def test_log_probs_are_those_of_the_weights_that_were_loaded() -> None:
    policy = Policy(CONFIG, SPACES, seed=3)
    rows = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    for version, seed in ((4, 1), (5, 2)):
        model = trained(seed)
        policy.load(blob(model, version))
        assert policy.version == version
        actions, logp, _ = policy.act({"obs": rows})
        assert [actions.dtype.name, logp.dtype.name] == ["int64", "float32"]
        assert set(actions) == {0, 1, 2}
        expected = log_probs(model, rows).numpy()[np.arange(64), actions]
        np.testing.assert_allclose(logp, expected, atol=1e-5)


def test_actions_are_as_frequent_as_they_are_likely() -> None:
    policy, model = Policy(CONFIG, SPACES, seed=3), trained(1)
    policy.load(blob(model))
    row = np.ones((1, 4), np.float32)
    count = 20_000
    actions, _, _ = policy.act({"obs": np.repeat(row, count, axis=0)})
    likely = log_probs(model, row).exp().numpy()[0]
    # Four standard deviations of a share of 20 000 draws: 4 * sqrt(0.25 / 20 000).
    np.testing.assert_allclose(np.bincount(actions, minlength=3) / count, likely, atol=0.0142)


def test_no_weights_have_arrived_at_first() -> None:
    assert Policy(CONFIG, SPACES, seed=3).version == -1


def test_the_digest_is_of_what_the_module_holds() -> None:
    policy, arrived = Policy(CONFIG, SPACES, seed=3), blob(trained(1))
    assert policy.load(arrived) == arrived.announce.digest


@pytest.mark.parametrize("other", [ModelConfig(hidden=(9,)), ModelConfig(hidden=(8, 8))])
def test_weights_of_another_network_are_refused(other: ModelConfig) -> None:
    policy, model = Policy(CONFIG, SPACES, seed=3), trained(1)
    policy.load(blob(model, 7))
    rows = np.ones((5, 4), np.float32)
    with pytest.raises(WeightsError, match="other layers"):
        policy.load(blob(trained(2, other), 8))
    assert policy.version == 7
    actions, logp, _ = policy.act({"obs": rows})
    expected = log_probs(model, rows).numpy()[np.arange(5), actions]
    np.testing.assert_allclose(logp, expected, atol=1e-5)


def test_weights_that_are_not_finite_are_refused() -> None:
    policy, model = Policy(CONFIG, SPACES, seed=3), trained(1)
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    with pytest.raises(WeightsError, match="not finite"):
        policy.load(blob(model))
    assert policy.version == -1


def test_the_same_seed_acts_the_same_and_another_one_does_not() -> None:
    rows = np.zeros((200, 4), np.float32)

    def actions(seed: int) -> list[int]:
        policy = Policy(CONFIG, SPACES, seed=seed)
        policy.load(blob(trained(1)))
        return list(policy.act({"obs": rows})[0])

    assert actions(3) == actions(3) != actions(4)


def test_its_dice_are_not_those_of_an_environment_with_its_seed() -> None:
    # Alike in distribution: two actions, each every other time.
    spaces = Spaces((Leaf("obs", "<f4", (4,)),), discrete(2))
    model = build(CONFIG, spaces, seed=1)
    with torch.no_grad():
        for number in model.parameters():
            number.zero_()
    policy = Policy(CONFIG, spaces, seed=3)
    policy.load(blob(model))
    actions, _, _ = policy.act({"obs": np.zeros((1000, 4), np.float32)})
    noise = np.random.default_rng(3).random(1000)  # as gymnasium seeds np_random
    # 1000 coins agree in half of their throws; four standard deviations are 63.
    assert abs(int(np.sum(actions == (noise >= 0.5))) - 500) < 64


# ---- memory, the likeliest action, what is no number ---------------------------------------------

GRU = ModelConfig(hidden=(8,), core="gru", core_units=5, separate=False)


def test_the_memory_goes_from_step_to_step() -> None:
    policy, model = Policy(GRU, SPACES, seed=3), trained(1, GRU)
    assert (policy.memory, policy.previous, policy.quick) == (5, False, False)
    policy.load(blob(model))
    memory = np.zeros((6, 5), np.float32)
    before = torch.zeros(6, 5)
    rng = np.random.default_rng(0)
    for _ in range(3):
        rows = rng.normal(size=(6, 4)).astype(np.float32)
        actions, logp, after = policy.act({"obs": rows}, memory)
        with torch.no_grad():
            logits, expected = model.policy({"obs": torch.from_numpy(rows)}, before)
        every = torch.log_softmax(logits.double(), dim=-1).numpy()
        np.testing.assert_allclose(logp, every[np.arange(6), actions], atol=1e-5)
        assert after is not None and expected is not None
        np.testing.assert_allclose(after, expected.numpy(), atol=1e-6)
        memory, before = after, expected
    assert Policy(CONFIG, SPACES, seed=3).memory == 0


def test_the_likeliest_action_needs_no_dice() -> None:
    policy, model = Policy(CONFIG, SPACES, seed=3), trained(1)
    policy.load(blob(model))
    rows = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    actions, logp, _ = policy.act({"obs": rows}, greedy=True)
    assert actions.tolist() == log_probs(model, rows).argmax(-1).tolist()
    assert not logp.any()
    untouched = Policy(CONFIG, SPACES, seed=3)
    untouched.load(blob(model))
    drawn, as_drawn = policy.act({"obs": rows})[0], untouched.act({"obs": rows})[0]
    np.testing.assert_array_equal(drawn, as_drawn)


class Broken(nn.Module):
    """No number for an observation above 2, though every weight is one."""

    def __init__(self) -> None:
        super().__init__()
        self.units = 4

    def forward(self, obs: dict[str, torch.Tensor]) -> torch.Tensor:
        return (2.0 - obs["obs"]).sqrt()


def broken(leaves: tuple[Leaf, ...], rng: torch.Generator) -> nn.Module:
    del leaves, rng
    return Broken()


@pytest.mark.parametrize("greedy", [False, True])
def test_a_network_that_gives_no_number_ends_the_sampler(greedy: bool) -> None:
    config = ModelConfig(kind=f"{__name__}:broken", separate=False)
    policy = Policy(config, SPACES, seed=3)
    rows = np.ones((20, 4), np.float32)
    policy.act({"obs": rows}, greedy=greedy)
    rows[7, 2] = 3.0
    with pytest.raises(
        ValueError, match=r"model.kind = \"tests.actors.acting.test_policy:broken\" makes"
    ):
        policy.act({"obs": rows}, greedy=greedy)


class Sound(Broken):
    def forward(self, obs: dict[str, torch.Tensor]) -> torch.Tensor:
        return obs["obs"]


MADE = itertools.cycle([Sound, Broken])  # the policy's encoder, then the value's


def half_broken(leaves: tuple[Leaf, ...], rng: torch.Generator) -> nn.Module:
    del leaves, rng
    return next(MADE)()


def test_a_memory_that_is_no_number_ends_the_sampler_too() -> None:
    """The value's: no action depends on it, but no learner takes it."""
    config = ModelConfig(kind=f"{__name__}:half_broken", core="gru", core_units=5)
    policy = Policy(config, SPACES, seed=3)
    rows = np.full((2, 4), 3.0, np.float32)
    with pytest.raises(ValueError, match=r"model.kind = "):
        policy.act({"obs": rows}, np.zeros((2, 10), np.float32))


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("config", [CONFIG, GRU])
@pytest.mark.parametrize("count", [2, 40])
def test_an_observation_that_is_no_number_is_the_environment_s_fault(
    config: ModelConfig, wrong: float, count: int
) -> None:
    """It is acted on somehow, and spoils nothing else; the unroll will tell of it."""
    policy, model = Policy(config, SPACES, seed=3), trained(1, config)
    policy.load(blob(model))
    rows = np.random.default_rng(0).normal(size=(count, 4)).astype(np.float32)
    rows[1, 2] = wrong
    memory = np.ones((count, 5), np.float32) if config is GRU else None
    actions, logp, after = policy.act({"obs": rows}, memory)
    assert np.isfinite(logp).all()
    assert set(actions.tolist()) <= {0, 1, 2}
    sound = np.arange(count) != 1
    before = None if memory is None else torch.from_numpy(memory)
    with torch.no_grad():
        logits, expected = model.policy({"obs": torch.from_numpy(rows)}, before)
    every = torch.log_softmax(logits.double(), dim=-1).numpy()[np.arange(count), actions]
    np.testing.assert_allclose(logp[sound], every[sound], atol=1e-5)
    if after is not None:
        assert expected is not None
        assert np.isfinite(after).all()
        np.testing.assert_allclose(after[sound], expected.numpy()[sound], atol=1e-6)


class Picky(nn.Module):
    """Good for zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.units = 5
        self.layer = nn.Linear(4, 5)

    def forward(self, obs: dict[str, torch.Tensor]) -> torch.Tensor:
        if obs["obs"].any():
            raise KeyError("what is this?")
        hidden: torch.Tensor = self.layer(obs["obs"])
        return hidden


def picky(leaves: tuple[Leaf, ...], rng: torch.Generator) -> nn.Module:
    del leaves, rng
    return Picky()


def test_an_encoder_that_fails_ends_the_sampler_in_one_line() -> None:
    policy = Policy(ModelConfig(kind=f"{__name__}:picky"), SPACES, seed=3)
    policy.act({"obs": np.zeros((2, 4), np.float32)})
    with pytest.raises(
        ValueError, match=r'model\.kind = ".*:picky" failed.*what is this\?'
    ) as said:
        policy.act({"obs": np.ones((2, 4), np.float32)})
    assert "\n" not in str(said.value)


def test_a_failure_of_our_own_stays_what_it_is() -> None:
    with pytest.raises(KeyError):
        Policy(CONFIG, SPACES, seed=3).act({"other": np.ones((2, 4), np.float32)})
