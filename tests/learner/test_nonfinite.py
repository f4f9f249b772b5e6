"""A step that is not finite: only the unrolls that make it so are rejected, and who is blamed."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from headrace.broker.errors import DivergedError
from headrace.learner.algorithms.batch_uses import Sample
from headrace.learner.algorithms.loss_inputs import LossBatch
from headrace.learner.config import AlgorithmConfig, ModelConfig
from headrace.learner.learner_config import LearnerConfig
from headrace.learner.models.build import build
from headrace.learner.models.model import Model
from headrace.learner.nonfinite import search
from headrace.learner.spaces import POLICY, Leaf, Spaces, discrete
from tests.learner.test_train import B, G, MadeUpFeed, T, bad, learn

NORMALISED = {"normalise_obs": True, "normalise_returns": True}


def spoilt(*where: tuple[int, int]) -> Callable[[int, dict[str, Any]], None]:
    """NaN in these unrolls: (batch, place)."""

    def change(number: int, arrays: dict[str, Any]) -> None:
        for batch, place in where:
            if batch == number:
                arrays["reward"][-1, place * G] = math.nan

    return change


@pytest.mark.slow
@pytest.mark.parametrize("core", ["none", "gru"])
@pytest.mark.parametrize(
    "algorithm",
    [
        AlgorithmConfig(name="impala"),
        AlgorithmConfig(name="impala", replay_share=0.5, normalise_advantages=True),
        AlgorithmConfig(name="appo", buffer_batches=2, uses=2),
        AlgorithmConfig(name="ppo", epochs=2, minibatches=1),
    ],
    ids=["impala", "replay", "appo", "ppo"],
)
def test_batch_mates_stay_and_are_trained_on(
    tmp_path: Path, algorithm: AlgorithmConfig, core: Any
) -> None:
    model = ModelConfig(hidden=(8,), core=core, core_units=4, **NORMALISED)  # type: ignore[arg-type]
    pieces, feed = learn(tmp_path, 4, algorithm=algorithm, model=model, change=spoilt((2, 1)))
    assert feed.refused == [(2, 1, True)]
    assert feed.outcomes == [("trained", 1), ("trained", 2), ("refilled", 1), ("trained", 3)]
    assert pieces.progress.trained_unrolls == 3 * B
    for tensor in pieces.model.state_dict().values():
        assert tensor.isfinite().all()
    assert pieces.model.normaliser is not None
    # The dead steps lie in the first unroll: of batches 0, 1, 2, and of 3, which joined at place 1.
    assert float(pieces.model.normaliser.count) == 3 * T * G * B - 4 * 3
    assert pieces.progress.trained_steps == 3 * T * G * B - 4 * 3


def test_what_breaks_a_later_step_of_a_batch_is_no_part_of_what_was_trained(tmp_path: Path) -> None:
    """Many small parts: the first ones do not hold the step that is no number."""
    algorithm = AlgorithmConfig(name="ppo", epochs=1, minibatches=20, trace=0.0, gamma=0.0)
    model = ModelConfig(hidden=(8,), **NORMALISED)  # type: ignore[arg-type]
    pieces, feed = learn(tmp_path, 3, algorithm=algorithm, model=model, change=spoilt((1, 1)))
    assert feed.outcomes == [("trained", 1), ("trained", 2), ("trained", 3)]
    assert feed.refused == [(1, 1, True)]
    assert 40 < pieces.progress.learner_steps < 60  # the second batch was left before its end
    assert pieces.progress.trained_unrolls == 3 * B - 1
    live = 3 * (T * G * B - 3) - T * G
    assert pieces.progress.trained_steps == live
    assert pieces.model.normaliser is not None and pieces.model.returns is not None
    assert float(pieces.model.normaliser.count) == live
    for tensor in pieces.model.state_dict().values():
        assert tensor.isfinite().all()


def test_where_all_are_bad_nobody_is_blamed(tmp_path: Path) -> None:
    both = [(number, place) for number in range(30) for place in range(B)]
    with pytest.raises(DivergedError, match="20 steps in a row"):
        learn(tmp_path, 30, change=spoilt(*both))


def test_none_is_blamed_for_what_most_of_a_batch_does(tmp_path: Path) -> None:
    _, feed = learn(tmp_path, 2, change=spoilt((0, 0), (0, 1)))
    assert feed.refused == [(0, 0, False), (0, 1, False)]
    assert feed.outcomes == [("refilled", 0), ("trained", 1)]


def test_a_flood_in_which_not_one_good_unroll_comes_ends(tmp_path: Path) -> None:
    """The good one stays and waits for another, but not for ever."""
    with pytest.raises(DivergedError, match="20 steps in a row"):
        learn(tmp_path, 30, change=bad(set(range(30))))


def test_a_network_that_is_not_finite_ends_the_run_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Model] = []

    def remember(*args: Any, **options: Any) -> Model:
        made.append(build(*args, **options))
        return made[-1]

    def breaks(number: int, _arrays: dict[str, Any]) -> None:
        if number == 1:
            made[0].value_head.bias.data.fill_(math.nan)

    monkeypatch.setattr("tests.learner.test_train.build", remember)
    with pytest.raises(DivergedError, match=r"the network itself is not finite \(value_head.bias"):
        learn(tmp_path, 30, change=breaks)


def test_a_policy_that_its_step_has_ruined_ends_the_run(tmp_path: Path) -> None:
    """Of a population only the rows that have moved are looked at."""
    leaves = (Leaf("obs", "<f4", (3,)), Leaf(POLICY, "<i8", (), (3,)))
    spaces = Spaces(leaves, discrete(2), population=3)
    feed = MadeUpFeed(30, spaces, 0)
    with pytest.raises(DivergedError, match=r"the network itself is not finite \(weights"):
        learn(tmp_path, 30, spaces=spaces, learner=LearnerConfig(lr=1e39), feed=feed)
    assert feed.published == [0]


def sample(unrolls: int) -> Sample:
    rows = torch.zeros(T, unrolls * G)
    loss = LossBatch(rows, rows, rows.clone(), rows.to(torch.uint8))
    return Sample({"obs": torch.zeros(T + 1, unrolls * G)}, None, None, loss, unrolls)


@pytest.mark.parametrize("guilty", [[], [0], [63], [5, 6, 40], list(range(64))])
def test_the_search_finds_all_and_only_them(guilty: list[int]) -> None:
    whole, weight, calls = sample(64), torch.ones(1, requires_grad=True), 0
    for place in guilty:
        whole.loss.reward[2, place * G + 1] = math.inf

    def loss_of(part: Sample) -> Tensor:
        nonlocal calls
        calls += 1
        return (part.loss.reward * weight).sum()

    assert search(whole, loss_of, [weight]) == guilty
    assert calls <= 1 + 2 * 6 * len(guilty)


def test_a_gradient_may_be_infinite_where_the_loss_is_not() -> None:
    whole, weight = sample(2), torch.zeros(1, requires_grad=True)
    whole.loss.reward[0, G] = 1.0

    def loss_of(part: Sample) -> Tensor:
        return (part.loss.reward.sum() * weight).abs().sqrt().sum()

    assert search(whole, loss_of, [weight]) != []
