"""What the heads give: Gaussian parameters in their order, masks on the logits, the step before."""

import math
from typing import Any

import pytest
import torch

from headrace.learner.config import ModelConfig
from headrace.learner.models.build import Model, build
from headrace.learner.spaces import Action, Leaf, Part, Spaces, discrete, previous_leaves

OBS = Leaf("obs", "float32", (3,))
MASK = Leaf("allowed", "int8", (5,), mask=True)
BOX = Part(("arm",), "float32", (2,), low=(-1.0, -math.inf), high=(1.0, math.inf))
CHOICES = Part(("gear",), "int64", (2,), (2, 3), (0, 0))
BOTH = Action((BOX, CHOICES))  # five logits, two numbers


def model_of(spaces: Spaces, **settings: Any) -> Model:
    model = build(ModelConfig(**settings), spaces, seed=0)
    with torch.no_grad():
        model.policy_head.weight.mul_(100)
    return model


@pytest.mark.parametrize("action", [Action((BOX,)), BOTH])
def test_free_deviations_depend_on_no_observation(action: Action) -> None:
    model = model_of(Spaces((OBS,), action), std_init=0.5)
    params = model({"obs": torch.randn(7, 4, 3)}).params
    assert params.shape == (7, 4, model.distribution.params)
    torch.testing.assert_close(params[..., -2:], torch.full((7, 4, 2), math.log(0.5)))
    assert params[..., :-2].flatten(0, 1).std(0).min() > 0.05
    params[..., -1].sum().backward()
    assert model.log_std is not None and model.log_std.grad is not None
    assert model.log_std.grad.tolist() == [0, 28]


@pytest.mark.parametrize("action", [Action((BOX,)), BOTH])
def test_deviations_of_the_network(action: Action) -> None:
    model = model_of(Spaces((OBS,), action), std="network", std_init=2.0)
    assert model.log_std is None
    assert model.policy_head.out_features == model.distribution.params
    zero = model({"obs": torch.zeros(3)}).params
    torch.testing.assert_close(zero[-2:], torch.full((2,), math.log(2.0)))
    assert not zero[:-2].any()
    params = model({"obs": torch.randn(50, 3)}).params
    assert params.std(0).min() > 0.05


@pytest.mark.parametrize("std", ["free", "network"])
def test_choices_have_no_deviations(std: str) -> None:
    model = model_of(Spaces((OBS,), Action((CHOICES,))), std=std, std_init=7.0)
    assert model.log_std is None and "log_std" not in model.state_dict()
    assert model.policy_head.out_features == 5 and not model.policy_head.bias.any()


@pytest.mark.parametrize("core", ["none", "gru"])
@pytest.mark.parametrize("action", [discrete(5), BOTH])
def test_a_mask_is_laid_on_the_logits_and_seen_by_nothing(action: Action, core: str) -> None:
    model = model_of(Spaces((MASK, OBS), action), core=core, core_units=4)
    free = model_of(Spaces((OBS,), action), core=core, core_units=4)
    obs = torch.randn(6, 4, 3)
    allowed = torch.randint(-1, 2, (6, 4, 5), dtype=torch.int8)
    output, exact = model({"obs": obs, "allowed": allowed}), free({"obs": obs})
    forbidden = torch.nn.functional.pad(allowed == 0, (0, output.params.shape[-1] - 5))
    assert forbidden.any() and (output.params[forbidden] < -1e8).all()
    assert output.params.isfinite().all()
    assert torch.equal(output.params[~forbidden], exact.params[~forbidden])
    assert torch.equal(output.value, exact.value)
    stepped, _ = model.policy({"obs": obs[0], "allowed": allowed[0]})
    torch.testing.assert_close(stepped, output.params[0])
    assert model.reads == ("obs", "allowed")


def test_a_mask_alone_is_nothing_to_see() -> None:
    with pytest.raises(ValueError, match=r"nothing but env\.mask; give the network something"):
        build(ModelConfig(), Spaces((MASK,), discrete(5)), seed=0)


def test_the_network_sees_the_step_before() -> None:
    spaces = Spaces((OBS,), BOTH)
    model = model_of(spaces, previous=True)
    names = [leaf.name for leaf in previous_leaves(spaces)]
    assert names == ["previous.choices", "previous.numbers", "previous.reward"]
    assert model.reads == ("obs", *names)
    obs = {
        "obs": torch.zeros(1, 3),
        "previous.choices": torch.full((1, 2), -1),
        "previous.numbers": torch.zeros(1, 2),
        "previous.reward": torch.zeros(1),
    }
    before = model(obs)
    assert not before.value.any()  # none of it: every feature is 0
    for name in names:
        for at in range(obs[name].numel()):
            changed = obs[name].clone()
            changed.view(-1)[at] = 1
            after = model({**obs, name: changed})
            assert after.value != before.value, (name, at)


def test_the_step_before_is_not_scaled() -> None:
    spaces = Spaces((OBS,), discrete(5))
    scaled = model_of(spaces, previous=True, obs_scale=(1, 2, 4))
    plain = model_of(spaces, previous=True)
    obs = {
        "obs": torch.randn(4, 3),
        "previous.choices": torch.randint(-1, 5, (4, 1)),
        "previous.reward": torch.randn(4),
    }
    larger = {**obs, "obs": obs["obs"] * torch.tensor([1.0, 2.0, 4.0])}
    torch.testing.assert_close(scaled(larger).params, plain(obs).params)
    with pytest.raises(ValueError, match=r"has 4 numbers, the observation has 3 features"):
        model_of(spaces, previous=True, obs_scale=(1, 2, 4, 8))


def test_the_step_before_is_not_normalised() -> None:
    model = model_of(Spaces((OBS,), discrete(5)), previous=True, normalise_obs=True)
    assert model.normaliser is not None and len(model.normaliser.mean) == 3


def test_a_name_that_is_taken() -> None:
    leaf = Leaf("previous.reward", "float32", ())
    with pytest.raises(
        ValueError, match=r"model\.previous adds previous\.reward .* has it already"
    ):
        build(ModelConfig(previous=True), Spaces((OBS, leaf), discrete(5)), seed=0)
