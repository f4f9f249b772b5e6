"""Each policy of a population is what it would be alone: outputs, gradients, optimiser steps."""

from collections.abc import Sequence

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from torch import Tensor, nn
from torch.func import functional_call

from headrace.learner.algorithms.optimiser_step import clip_gradients, make_optimiser
from headrace.learner.config import ModelConfig
from headrace.learner.learner_config import LearnerConfig
from headrace.learner.models.build import build
from headrace.learner.models.model import Model, Output
from headrace.learner.models.population.places import places_of
from headrace.learner.models.population.population import Population
from headrace.learner.spaces import POLICY, Leaf, Spaces, discrete

OBS = Leaf("obs", "<f4", (3,))
SPACES = Spaces((OBS, Leaf(POLICY, "<i8", (), (5,))), discrete(4), population=5)
CONFIG = ModelConfig(kind="mlp", hidden=(6, 7))


def population(config: ModelConfig = CONFIG, spaces: Spaces = SPACES) -> Population:
    made = build(config, spaces, seed=3)
    assert isinstance(made, Population)
    return made


def alone(many: Population, policy: int, config: ModelConfig = CONFIG) -> Model:
    """Returns one policy as an ordinary network."""
    one = build(config, Spaces((OBS,), discrete(4)), seed=0)
    with torch.no_grad():
        for piece in many.pieces:
            one.get_parameter(piece.name).copy_(piece.of(many.weights)[policy])
    return one


def steps(policies: Sequence[int]) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(len(policies))
    return {"obs": torch.randn(len(policies), 3, generator=rng), POLICY: torch.tensor(policies)}


@given(some.lists(some.integers(0, 9), min_size=1, max_size=60))
def test_every_step_finds_its_way_back(policies: list[int]) -> None:
    played = torch.tensor(policies)
    places = places_of(played)
    blocks = places.spread(played)
    whose = places.present if places.row is None else places.present[places.row]
    assert (blocks[:, 0] == whose).all()
    assert torch.equal(places.collect(blocks), played)
    assert torch.equal(places.collect(whose.unsqueeze(1).expand(-1, places.width)), played)
    assert blocks.numel() <= 3 * len(policies)


@pytest.mark.parametrize("policies", [[2], [0, 1, 2, 3, 4], [4, 4, 0, 4, 4, 4, 4, 4, 4, 4, 1, 4]])
@pytest.mark.parametrize("separate", [True, False])
def test_each_policy_answers_as_it_would_alone(policies: list[int], separate: bool) -> None:
    config = msgspec.structs.replace(CONFIG, separate=separate)
    many, seen = population(config), steps(policies)
    output = many(seen)
    params, memory = many.policy(seen)
    assert memory is None
    for at, policy in enumerate(policies):
        expected: Output = alone(many, policy, config)({"obs": seen["obs"][at : at + 1]})
        torch.testing.assert_close(output.params[at], expected.params[0])
        torch.testing.assert_close(output.value[at], expected.value[0])
        torch.testing.assert_close(params[at], expected.params[0])


def test_time_and_columns_stay_where_they_are() -> None:
    many, flat = population(), steps([0, 3, 3, 1, 0, 2])
    wide = {name: rows.view(2, 3, *rows.shape[1:]) for name, rows in flat.items()}
    for made, expected in zip(many(wide), many(flat), strict=True):
        assert torch.equal(made.flatten(0, 1), expected)


def test_policies_begin_apart_and_orthogonal() -> None:
    many = population()
    for piece in many.pieces:
        rows, one = piece.of(many.weights.detach()), alone(many, 0).get_parameter(piece.name)
        if len(piece.shape) == 1:
            assert not rows.any()
            continue
        assert (rows[0] - rows[1]).abs().max() > 1e-4
        singular = torch.linalg.svdvals(rows)
        torch.testing.assert_close(singular, torch.linalg.svdvals(one).expand_as(singular))
    assert torch.equal(many.weights, population().weights)


@pytest.mark.parametrize("largest", [0.0, 0.01])
@pytest.mark.parametrize("largest_value", [0.0, 0.001])
def test_a_step_moves_each_policy_as_its_own_optimiser_would(
    largest: float, largest_value: float
) -> None:
    config = LearnerConfig(eps=1e-5, grad_clip=largest, grad_clip_value=largest_value)
    many = population()
    factor = torch.tensor([1.0, 2.0, 0.5, 1.0, 3.0])
    many.get_buffer("lr_factor").copy_(factor)
    singles = [alone(many, policy) for policy in range(5)]
    own = [
        make_optimiser(config, one, lr=0.01 * float(f))
        for one, f in zip(singles, factor, strict=True)
    ]
    optimiser = make_optimiser(config, many, lr=0.01)
    for policies in ([0, 1, 1, 4], [1, 1, 1, 1, 1, 1, 0], [0, 2, 4], [0, 0]):
        seen, before = steps(policies), many.weights.detach().clone()
        backward(loss(many(seen)))
        clip_gradients(config, list(many.parameters()))
        optimiser.step()
        optimiser.zero_grad()
        for policy in range(5):
            if policy not in policies:
                assert torch.equal(many.weights[policy], before[policy])
                continue
            at = torch.tensor(policies) == policy
            backward(loss(singles[policy]({"obs": seen["obs"][at]})))
            clip_gradients(config, list(singles[policy].parameters()))
            own[policy].step()
            own[policy].zero_grad()
            expected = nn.utils.parameters_to_vector(singles[policy].parameters())
            torch.testing.assert_close(many.weights[policy].detach(), expected.detach())


def test_a_policy_that_took_over_another_learns_as_that_one_does() -> None:
    many = population()
    many.get_buffer("lr_factor").copy_(torch.tensor([1.0, 2.0, 0.5, 1.0, 3.0]))
    optimiser = make_optimiser(LearnerConfig(), many, lr=0.01)

    def step(policies: Sequence[int]) -> None:
        seen = steps(policies)
        seen["obs"][:] = seen["obs"][0]
        backward(loss(many(seen)))
        optimiser.step()
        optimiser.zero_grad()

    step([0, 4, 4])
    step([2, 4, 0])
    many.touched.zero_()
    many.take_over(2, 4)
    assert many.touched.tolist() == [False, False, True, False, False]
    assert torch.equal(many.weights[2], many.weights[4])
    step([2, 4])
    assert torch.equal(many.weights[2], many.weights[4])
    many.multiply(2, {"lr": 0.5, "clip": 2.0})
    assert many.get_buffer("lr_factor").tolist() == [1.0, 2.0, 1.5, 1.0, 3.0]
    assert many.get_buffer("clip_factor").tolist() == [1.0, 1.0, 2.0, 1.0, 1.0]
    step([2, 4])
    assert not torch.equal(many.weights[2], many.weights[4])


def backward(total: Tensor) -> None:
    total.backward()  # type: ignore[no-untyped-call]


def loss(output: Output) -> Tensor:
    return (output.params.square() + output.value.unsqueeze(-1).square()).sum() * 100


def test_a_policy_that_trains_nobody_stays() -> None:
    many = population()
    optimiser = make_optimiser(LearnerConfig(), many, lr=0.01)
    before = many.weights.detach().clone()
    output = many(steps([1, 2]))
    backward(output.value[0].square())  # what policy 2 gave does not count
    optimiser.step()
    moved = (many.weights != before).any(dim=1)
    assert moved.tolist() == [False, True, False, False, False]


def test_returns_that_move_change_no_value() -> None:
    many = population(msgspec.structs.replace(CONFIG, normalise_returns=True))
    assert many.returns is not None
    seen = steps([0, 3, 3, 1])
    before = many(seen).value
    many.returns.move(torch.tensor(7.0, dtype=torch.float64), torch.tensor(3.0))
    torch.testing.assert_close(many(seen).value, before)
    assert (many(seen).value - before).abs().max() < 1e-4


def test_one_policy_of_it_is_a_network_of_its_own() -> None:
    both = msgspec.structs.replace(CONFIG, normalise_returns=True, normalise_obs=True)
    many, seen = population(both), steps([2, 2, 2])
    assert many.returns is not None and many.normaliser is not None
    many.normaliser.update({"obs": torch.randn(8, 3) * 9 + 5}, torch.ones(8), lambda total: total)
    many.returns.move(torch.tensor(7.0, dtype=torch.float64), torch.tensor(3.0))
    one = many.alone(2)
    for made, expected in zip(one({"obs": seen["obs"]}), many(seen), strict=True):
        torch.testing.assert_close(made, expected)
    ordinary = build(both, Spaces((OBS,), discrete(4)), seed=0)
    ordinary.load_state_dict(one.state_dict())


def test_it_moves_to_a_device_with_all_that_it_computes_with() -> None:
    config = msgspec.structs.replace(CONFIG, obs_scale=(1.0, 2.0, 3.0))
    many = population(config).to("meta")
    held = [*many.named_parameters(), *many.named_buffers(), *many._one[0].named_buffers()]
    assert "encoder.features.scale" in dict(held)
    assert {tensor.device.type for _, tensor in held} == {"meta"}


def test_masks_and_statistics_reach_every_policy() -> None:
    mask = Leaf("mask", "|i1", (4,), mask=True)
    spaces = msgspec.structs.replace(SPACES, observation=(*SPACES.observation, mask))
    many = population(msgspec.structs.replace(CONFIG, normalise_obs=True), spaces)
    seen = steps([0, 3, 3]) | {"mask": torch.tensor([[1, 0, 0, 1]] * 3, dtype=torch.int8)}
    assert many.normaliser is not None
    many.normaliser.update({"obs": torch.randn(8, 3) * 9 + 5}, torch.ones(8), lambda total: total)
    params = many(seen).params
    assert (params[:, 1:3] < -1e6).all() and (params[:, ::3].abs() < 1e3).all()
    normal = many.normaliser(seen)["obs"]
    expected = functional_call(alone(many, 3), {}, ({"obs": normal[1:2]},)).params[0, ::3]
    torch.testing.assert_close(params[1, ::3], expected)


@pytest.mark.parametrize(("key", "value"), [("kind", "grid"), ("core", "lstm")])
def test_what_a_population_cannot_have_is_said(key: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"model\.{key} is .*population"):
        build(msgspec.structs.replace(CONFIG, **{key: value}), SPACES, seed=1)
