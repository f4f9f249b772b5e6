"""Clipping, the optimisers, and how a target network follows."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from headrace.learner.algorithms import optimiser_state, optimiser_step
from headrace.learner.config import ModelConfig
from headrace.learner.learner_config import LearnerConfig
from headrace.learner.models.build import build
from headrace.learner.models.model import Model
from headrace.learner.models.normalise import Moments
from headrace.learner.spaces import Leaf, Spaces, discrete


def with_gradients(*gradients: float) -> nn.Linear:
    layer = nn.Linear(len(gradients), 1, bias=False)
    layer.weight.grad = torch.tensor([gradients])
    return layer


def clipped(config: LearnerConfig, *gradients: float) -> tuple[float, list[float]]:
    layer = with_gradients(*gradients)
    norm = float(optimiser_step.clip_gradients(config, [layer.weight]))
    assert layer.weight.grad is not None
    return norm, layer.weight.grad.flatten().tolist()


def test_the_global_norm() -> None:
    norm, found = clipped(LearnerConfig(grad_clip=1.0), 3.0, 4.0)
    assert norm == pytest.approx(5.0)
    assert found == pytest.approx([0.6, 0.8], abs=1e-5)
    assert clipped(LearnerConfig(grad_clip=0.0), 3.0, 4.0)[1] == [3.0, 4.0]


def test_values_are_cut_before_the_norm() -> None:
    norm, found = clipped(LearnerConfig(grad_clip=0.0, grad_clip_value=3.5), -3.0, 4.0)
    assert norm == pytest.approx(5.0)
    assert found == [-3.0, 3.5]
    norm, found = clipped(LearnerConfig(grad_clip=1.0, grad_clip_value=3.0), 3.0, 4.0)
    assert norm == pytest.approx(5.0)
    assert found == pytest.approx([math.sqrt(0.5)] * 2, abs=1e-5)


@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_shows(bad: float, value: float) -> None:
    norm, _ = clipped(LearnerConfig(grad_clip_value=value), 1.0, bad)
    assert not math.isfinite(norm)


def test_rmsprop_by_hand() -> None:
    config = LearnerConfig(optimiser="rmsprop", decay=0.9, eps=0.1, momentum=0.5)
    layer = with_gradients(2.0)
    before = layer.weight.item()
    optimiser = optimiser_step.make_optimiser(config, layer, lr=0.01)
    square = velocity = 0.0
    expected = before
    for _ in range(3):
        optimiser.step()
        square = 0.9 * square + 0.1 * 4.0
        velocity = 0.5 * velocity + 2.0 / (math.sqrt(square) + 0.1)
        expected -= 0.01 * velocity
    assert layer.weight.item() == pytest.approx(expected)


def pair(**settings: Any) -> tuple[Model, Model]:
    spaces = Spaces((Leaf("obs", "<f4", (3,)),), discrete(2))
    config = ModelConfig(hidden=(4,), **settings)
    return build(config, spaces, seed=1), build(config, spaces, seed=2)


def test_a_target_network_follows() -> None:
    target, model = pair(normalise_obs=True)
    assert model.normaliser is not None and target.normaliser is not None
    model.normaliser.mean.fill_(7.0)
    expected = [t + 0.25 * (m - t) for t, m in zip(weights(target), weights(model), strict=True)]
    optimiser_step.update_target(target, model, 0.25)
    torch.testing.assert_close(weights(target), expected)
    # Statistics are no weights: half of old and half of new would be nobody's.
    assert target.normaliser.mean.tolist() == [7.0] * 3
    optimiser_step.update_target(target, model, 1.0)
    assert all(torch.equal(t, m) for t, m in zip(weights(target), weights(model), strict=True))


def test_a_target_networks_values_keep_their_units() -> None:
    """The returns have moved from 0 +- 1 to 100 +- 50; the target follows slowly."""
    target, model = pair(normalise_returns=True)
    target.load_state_dict(model.state_dict())
    obs = {"obs": torch.randn(5, 3)}
    before = target(obs).value.detach()
    assert model.returns is not None
    count, mean, spread = 10.0, 100.0, 50.0
    found = torch.tensor([count, mean, count * spread**2], dtype=torch.float64)
    model.returns.merge(Moments(*found))
    torch.testing.assert_close(model(obs).value.detach(), before, atol=1e-4, rtol=0)
    optimiser_step.update_target(target, model, 0.01)
    torch.testing.assert_close(target(obs).value.detach(), before, atol=1e-4, rtol=0)


def weights(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def test_a_restored_optimiser_does_as_the_run_says_now() -> None:
    old = LearnerConfig(optimiser="rmsprop", eps=1e-5, decay=0.9)
    layer = with_gradients(2.0)
    before = optimiser_step.make_optimiser(old, layer, lr=0.01)
    before.step()
    tensors, meta = optimiser_state.state_of(before)
    new = LearnerConfig(optimiser="rmsprop", eps=1e-2, decay=0.5, momentum=0.9)
    after = optimiser_step.make_optimiser(new, layer, lr=0.02)
    optimiser_state.restore(after, tensors, meta)
    (group,) = after.param_groups
    assert (group["eps"], group["alpha"], group["momentum"], group["lr"]) == (1e-2, 0.5, 0.9, 0.02)
    state = after.state[layer.weight]
    assert state["square_avg"].item() == pytest.approx(0.1 * 4.0)
    at = layer.weight.item()
    after.step()
    square = 0.5 * 0.4 + 0.5 * 4.0
    assert layer.weight.item() == pytest.approx(at - 0.02 * 2.0 / (math.sqrt(square) + 1e-2))
