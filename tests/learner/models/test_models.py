"""Networks: shapes, seeds, and what a wrong setting is told."""

import subprocess
import sys

import pytest
import torch

from headrace.learner.config import ModelConfig
from headrace.learner.models.build import Model, build
from headrace.learner.models.encoders.features import Features
from headrace.learner.spaces import Leaf, Spaces, discrete

CARTPOLE = Spaces((Leaf("obs", "float32", (4,)),), discrete(2))
MIXED = Spaces(
    (Leaf("board", "uint8", (3, 2)), Leaf("clock", "float64", ()), Leaf("speed", "float32", (1,))),
    discrete(5),
)


COUNTED = Spaces(
    (
        Leaf("item", "int64", (), categories=(3,)),
        Leaf("hand", "int32", (2,), categories=(2, 4)),
        Leaf("door", "bool", (2,)),
        Leaf("level", "int16", ()),
    ),
    discrete(2),
)


def weights(model: Model) -> torch.Tensor:
    return torch.cat([value.flatten() for value in model.state_dict().values()])


@pytest.mark.parametrize("separate", [True, False])
@pytest.mark.parametrize("lead", [(), (3,), (7, 3)])
def test_shapes(separate: bool, lead: tuple[int, ...]) -> None:
    model = build(ModelConfig(kind="mlp", separate=separate, activation="relu"), MIXED, seed=0)
    obs = {
        "board": torch.randint(0, 255, (*lead, 3, 2), dtype=torch.uint8),
        "clock": torch.randn(lead, dtype=torch.float64),
        "speed": torch.randn((*lead, 1)),
    }
    output = model(obs)
    assert output.params.shape == (*lead, 5) and output.params.dtype == torch.float32
    assert output.value.shape == lead
    torch.testing.assert_close(model.policy(obs)[0], output.params)


def test_every_feature_counts() -> None:
    model = build(ModelConfig(kind="mlp"), MIXED, seed=0)
    zero = {
        "board": torch.zeros(3, 2, dtype=torch.uint8),
        "clock": torch.zeros((), dtype=torch.float64),
        "speed": torch.zeros(1),
    }
    before = model(zero).value
    for name, value in zero.items():
        for index in range(value.numel()):
            changed = value.clone()
            changed.view(-1)[index] = 1
            assert model({**zero, name: changed}).value != before


def test_separate_networks_share_nothing() -> None:
    for separate in (True, False):
        model = build(ModelConfig(separate=separate), CARTPOLE, seed=0)
        model({"obs": torch.ones(4)}).value.backward()
        touched = {name for name, p in model.named_parameters() if p.grad is not None}
        assert any(name.startswith("encoder") for name in touched) is not separate
        assert not any(name.startswith("policy") for name in touched)


def test_no_hidden_layers_is_a_linear_model() -> None:
    model = build(ModelConfig(hidden=()), CARTPOLE, seed=0)
    assert sum(p.numel() for p in model.parameters()) == (4 + 1) * (2 + 1)


def test_the_seed_decides_the_weights_and_nothing_else_does() -> None:
    torch.manual_seed(1)
    first = build(ModelConfig(), CARTPOLE, seed=7)
    torch.manual_seed(2)
    second = build(ModelConfig(), CARTPOLE, seed=7)
    other = build(ModelConfig(), CARTPOLE, seed=8)
    assert torch.equal(weights(first), weights(second))
    assert not torch.equal(weights(first), weights(other))


def test_building_leaves_the_global_draw_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    build(ModelConfig(), CARTPOLE, seed=7)
    assert torch.equal(torch.rand(3), expected)


def test_initial_layers() -> None:
    model = build(ModelConfig(hidden=(32, 32)), CARTPOLE, seed=0)
    state = model.state_dict()
    hidden = state["encoder.layers.2.weight"]
    torch.testing.assert_close(hidden @ hidden.T, 2 * torch.eye(32), atol=1e-5, rtol=0)
    head = state["policy_head.weight"]
    torch.testing.assert_close(head @ head.T, 1e-4 * torch.eye(2), atol=1e-9, rtol=0)
    assert state["value_head.weight"].norm() == pytest.approx(1)
    assert all(not value.any() for name, value in state.items() if name.endswith("bias"))


def test_obs_scale_divides_and_is_no_weight() -> None:
    scaled = build(ModelConfig(obs_scale=(1, 2, 4, 8)), CARTPOLE, seed=0)
    plain = build(ModelConfig(), CARTPOLE, seed=0)
    obs = torch.randn(3, 4)
    torch.testing.assert_close(
        scaled({"obs": obs * torch.tensor([1.0, 2.0, 4.0, 8.0])}), plain({"obs": obs})
    )
    assert scaled.state_dict().keys() == plain.state_dict().keys()


def counted(item: int, hand: list[int], door: list[bool], level: int) -> dict[str, torch.Tensor]:
    return {
        "item": torch.tensor(item),
        "hand": torch.tensor(hand, dtype=torch.int32),
        "door": torch.tensor(door),
        "level": torch.tensor(level, dtype=torch.int16),
    }


def test_categories_become_one_number_each() -> None:
    features = Features(COUNTED.observation, ())
    assert features.count == 3 + (2 + 4) + 2 + 1
    row = features(counted(2, [1, 3], [True, False], -7))
    assert row.tolist() == [0, 0, 1, 0, 1, 0, 0, 0, 1, 1, 0, -7]
    row = features(counted(0, [0, 0], [False, True], 7))
    assert row.tolist() == [1, 0, 0, 1, 0, 1, 0, 0, 0, 0, 1, 7]


def test_a_category_that_does_not_exist_is_none_of_them() -> None:
    features = Features(COUNTED.observation[:2], ())
    assert features({"item": torch.tensor(3), "hand": torch.tensor([2, -1])}).tolist() == [0] * 9


@pytest.mark.parametrize("lead", [(), (5,), (4, 5)])
def test_one_hot_with_leading_dimensions(lead: tuple[int, ...]) -> None:
    model = build(ModelConfig(obs_scale=(1.0,) * 12), COUNTED, seed=0)
    obs = {
        "item": torch.randint(0, 3, lead),
        "hand": torch.randint(0, 2, (*lead, 2), dtype=torch.int32),
        "door": torch.randint(0, 2, (*lead, 2)).bool(),
        "level": torch.randint(-9, 9, lead, dtype=torch.int16),
    }
    output = model(obs)
    assert output.params.shape == (*lead, 2) and output.value.shape == lead
    if lead:
        first = {name: value[0] for name, value in obs.items()}
        torch.testing.assert_close(model(first).params, output.params[0])


def test_obs_scale_counts_one_hot_numbers() -> None:
    with pytest.raises(ValueError, match=r"obs_scale has 6 numbers, the observation has 12"):
        build(ModelConfig(obs_scale=(1,) * 6), COUNTED, seed=0)


def test_stacked_leaves_are_flattened_whole() -> None:
    leaves = (
        Leaf("joint", "float32", (3,), stack=2),
        Leaf("key", "uint8", (), categories=(4,), stack=3),
    )
    features = Features(leaves, ())
    obs = {
        "joint": torch.arange(6.0).view(1, 2, 3),
        "key": torch.tensor([[0, 3, 1]], dtype=torch.uint8),
    }
    assert features.count == 6 + 12
    assert features(obs).tolist() == [[0, 1, 2, 3, 4, 5, *(1, 0, 0, 0), *(0, 0, 0, 1), 0, 1, 0, 0]]
    image = Spaces((Leaf("obs", "uint8", (5, 6), stack=4),), discrete(2))
    model = build(ModelConfig(kind="mlp"), image, seed=0)
    assert model({"obs": torch.zeros(7, 4, 5, 6, dtype=torch.uint8)}).value.shape == (7,)


def test_wrong_settings_say_what_to_change() -> None:
    with pytest.raises(ValueError, match=r"obs_scale has 3 numbers, the observation has 4"):
        build(ModelConfig(obs_scale=(1, 2, 3)), CARTPOLE, seed=0)
    with pytest.raises(ValueError, match=r'model\.kind = "cnn" is not available.*: auto, mlp'):
        build(ModelConfig(kind="cnn"), CARTPOLE, seed=0)


@pytest.mark.slow
def test_building_does_not_load_the_compiler() -> None:
    """It takes seconds to import, and a sampler must start in less."""
    script = (
        "import sys; from headrace.learner.config import ModelConfig;"
        "from headrace.learner.models.build import build;"
        "from headrace.learner.spaces import Leaf, Spaces, discrete;"
        "build(ModelConfig(), Spaces((Leaf('obs', 'float32', (4,)),), discrete(2)), seed=0);"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
