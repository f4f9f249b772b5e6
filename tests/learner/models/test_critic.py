"""Hides leaves from the policy: it must not depend on them, and can act without them."""

from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from headrace.actors.acting.networks import ActingNetwork
from headrace.actors.acting.policy import Policy
from headrace.actors.acting.trained_policy import TrainedPolicy
from headrace.broker.weights.blobs import Blob
from headrace.learner.config import ModelConfig
from headrace.learner.models.build import build
from headrace.learner.models.model import Model
from headrace.learner.spaces import Leaf, Spaces, discrete
from headrace.learner.weights import FlatWeights, layout_digest

LEAVES = (
    Leaf("own", "float32", (3,)),
    Leaf("state", "float32", (5,)),
    Leaf("turn", "int64", (), (4,)),
)
SPACES = Spaces(LEAVES, discrete(3), critic=("state",))
SETTINGS = {
    "mlp": ModelConfig(hidden=(16,)),
    "normalised": ModelConfig(hidden=(16,), normalise_obs=True),
    "gru": ModelConfig(hidden=(16,), core="gru", core_units=8, normalise_obs=True),
    "previous": ModelConfig(hidden=(16,), previous=True),
}


def made(config: ModelConfig, spaces: Spaces = SPACES) -> Model:
    model = build(config, spaces, seed=1)
    with torch.no_grad():
        for head in (model.policy_head, model.value_head):
            head.weight.normal_()
    if model.normaliser is not None:
        rows = {leaf.name: torch.randn(1, 64, *leaf.shape) for leaf in LEAVES[:2]}
        live = torch.ones(1, 64)
        model.normaliser.update(rows, live, lambda x: x)
    return model


def rows(count: int, **more: Any) -> dict[str, torch.Tensor]:
    found = {
        "own": torch.randn(count, 3),
        "state": torch.randn(count, 5),
        "turn": torch.randint(0, 4, (count,)),
        "previous.choices": torch.randint(0, 3, (count, 1)),
        "previous.reward": torch.randn(count),
    }
    return found | more


@pytest.mark.parametrize("name", SETTINGS)
def test_the_value_depends_on_it_and_the_policy_does_not(name: str) -> None:
    model = made(SETTINGS[name])
    seen = rows(6)
    other = seen | {"state": torch.randn(6, 5)}
    if model.memory:
        seen, other = ({k: x.unsqueeze(0) for k, x in one.items()} for one in (seen, other))
    first, second = model(seen), model(other)
    assert (first.params == second.params).all()
    assert (first.value != second.value).all()


@pytest.mark.parametrize("name", SETTINGS)
def test_a_sampler_acts_as_the_learner_believes(name: str) -> None:
    model = made(SETTINGS[name])
    acting = ActingNetwork(model, SPACES, "float32")
    seen = rows(6)
    memory = torch.randn(6, model.memory) if model.memory else None
    params, after = acting.params(
        {key: x.numpy() for key, x in seen.items()}, None if memory is None else memory.numpy()
    )
    expected, kept = model.policy(seen, memory)
    assert params == pytest.approx(expected.detach().numpy(), abs=1e-5)
    if after is not None and kept is not None:
        assert after == pytest.approx(kept.detach().numpy(), abs=1e-5)


def test_numbers_alone_take_the_quick_way_and_are_the_same() -> None:
    spaces = msgspec.structs.replace(SPACES, observation=LEAVES[:2])
    model = made(SETTINGS["normalised"], spaces)
    acting = ActingNetwork(model, spaces, "float32")
    assert acting.quick
    seen = rows(6)
    params, _ = acting.params({key: seen[key].numpy() for key in ("own", "state")})
    assert params == pytest.approx(model.policy(seen)[0].detach().numpy(), abs=1e-5)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_trained_policy_acts_without_it(name: str) -> None:
    model, config = made(SETTINGS[name]), SETTINGS[name]
    policy = Policy(config, SPACES, seed=1, precision="float32")
    policy.load(Blob.of(1, layout_digest(model), FlatWeights(model).dump()))
    trained = TrainedPolicy(policy, SPACES)
    own = {"own": np.ones(3, np.float32), "turn": 2}
    without, _ = trained.act(own)
    told, _ = trained.act(own | {"state": np.full(5, 9.0, np.float32)})
    assert without == told
    with pytest.raises(ValueError, match="no own"):
        trained.act({"turn": 2})


@pytest.mark.parametrize("changed", [{"separate": False}, {"obs_scale": (1.0,) * 12}])
def test_what_cannot_be_kept_apart_is_refused(changed: dict[str, Any]) -> None:
    config = msgspec.structs.replace(ModelConfig(hidden=(16,)), **changed)
    with pytest.raises(ValueError, match=r"env.critic needs a value network of its own"):
        build(config, SPACES, seed=1)


def test_images_share_no_layers_then_either() -> None:
    image = Leaf("own", "uint8", (84, 84, 4))
    spaces = Spaces((image, LEAVES[1]), discrete(3), critic=("state",))
    model = build(ModelConfig(), spaces, seed=1)
    assert model.convolutional and model.value_encoder is not None
