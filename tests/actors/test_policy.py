"""The acting policy: whose weights it uses, what it says of them, and how its dice fall."""

import numpy as np
import pytest
import torch

from actors.policy import Policy
from broker.blobs import Blob
from learner import weights
from learner.config import ModelConfig
from learner.models.build import Model, build
from learner.spaces import Discrete, Leaf, Spaces
from learner.weights import WeightsError

SPACES = Spaces((Leaf("obs", "<f4", (4,)),), Discrete(3))
CONFIG = ModelConfig(hidden=(8,))


def trained(seed: int, config: ModelConfig = CONFIG) -> Model:
    """A network with opinions: a fresh one likes all actions alike."""
    model = build(config, SPACES, seed=seed)
    with torch.no_grad():
        for number in model.parameters():
            number.mul_(5.0).add_(0.1)
    return model


def blob(model: Model, version: int = 1) -> Blob:
    return Blob.of(version, weights.layout_digest(model), weights.dump(model))


def log_probs(
    model: Model, rows: np.ndarray[tuple[int, ...], np.dtype[np.float32]]
) -> torch.Tensor:
    with torch.no_grad():
        return torch.log_softmax(model.policy({"obs": torch.from_numpy(rows)}).double(), dim=-1)


def test_log_probs_are_those_of_the_weights_that_were_loaded() -> None:
    policy = Policy(CONFIG, SPACES, seed=3)
    rows = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    for version, seed in ((4, 1), (5, 2)):
        model = trained(seed)
        policy.load(blob(model, version))
        assert policy.version == version
        actions, logp = policy.act({"obs": rows})
        assert [actions.dtype.name, logp.dtype.name] == ["int64", "float32"]
        assert set(actions) == {0, 1, 2}
        expected = log_probs(model, rows).numpy()[np.arange(64), actions]
        np.testing.assert_allclose(logp, expected, atol=1e-5)


def test_actions_are_as_frequent_as_they_are_likely() -> None:
    policy, model = Policy(CONFIG, SPACES, seed=3), trained(1)
    policy.load(blob(model))
    row = np.ones((1, 4), np.float32)
    count = 20_000
    actions, _ = policy.act({"obs": np.repeat(row, count, axis=0)})
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
    actions, logp = policy.act({"obs": rows})
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
    spaces = Spaces((Leaf("obs", "<f4", (4,)),), Discrete(2))
    model = build(CONFIG, spaces, seed=1)
    with torch.no_grad():
        for number in model.parameters():
            number.zero_()
    policy = Policy(CONFIG, spaces, seed=3)
    policy.load(blob(model))
    actions, _ = policy.act({"obs": np.zeros((1000, 4), np.float32)})
    noise = np.random.default_rng(3).random(1000)  # as gymnasium seeds np_random
    # 1000 coins agree in half of their throws; four standard deviations are 63.
    assert abs(int(np.sum(actions == (noise >= 0.5))) - 500) < 64
