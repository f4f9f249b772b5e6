"""Clipping, the optimisers, and how a target network follows."""

import math

import pytest
import torch
from torch import nn

from learner import optimise
from learner.config import LearnerConfig


def with_gradients(*gradients: float) -> nn.Linear:
    layer = nn.Linear(len(gradients), 1, bias=False)
    layer.weight.grad = torch.tensor([gradients])
    return layer


def clipped(config: LearnerConfig, *gradients: float) -> tuple[float, list[float]]:
    layer = with_gradients(*gradients)
    norm = float(optimise.clip(config, [layer.weight]))
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
    optimiser = optimise.make(config, layer, lr=0.01)
    square = velocity = 0.0
    expected = before
    for _ in range(3):
        optimiser.step()
        square = 0.9 * square + 0.1 * 4.0
        velocity = 0.5 * velocity + 2.0 / (math.sqrt(square) + 0.1)
        expected -= 0.01 * velocity
    assert layer.weight.item() == pytest.approx(expected)


def test_a_target_network_follows() -> None:
    target, model = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
    assert isinstance(model.running_mean, torch.Tensor)
    nn.init.constant_(model.weight, 3.0)
    model.running_mean.fill_(7.0)
    optimise.follow(target, model, 0.25)
    assert target.weight.tolist() == [1.5, 1.5]
    # Statistics are no weights: half of old and half of new would be nobody's.
    assert isinstance(target.running_mean, torch.Tensor)
    assert target.running_mean.tolist() == [7.0, 7.0]
    optimise.follow(target, model, 1.0)
    assert target.weight.tolist() == [3.0, 3.0]
