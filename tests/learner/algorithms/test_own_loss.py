"""A loss of the user's own: found by its name, and every mistake in it is one line."""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, cast

import pytest
import torch

from headrace.learner.algorithms import own_loss
from headrace.learner.algorithms.loss_inputs import Loss, LossInputs
from headrace.learner.algorithms.losses import LOSSES
from headrace.learner.config import AlgorithmConfig
from headrace.learner.models.named_code import OwnCodeError

GIVEN = cast(LossInputs, object())
ZERO = torch.zeros(())
MADE = Loss(ZERO, {}, vs=ZERO, value=ZERO, share=ZERO)


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Callable[[LossInputs], Loss]]:
    def found(loss: Any) -> Callable[[LossInputs], Loss]:
        module = ModuleType("of_theirs")
        module.loss = loss  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "of_theirs", module)
        own_loss._own.cache_clear()
        return own_loss.function(AlgorithmConfig(loss="of_theirs:loss"))

    return found


def test_without_one_it_is_the_algorithms() -> None:
    for name in LOSSES:
        assert own_loss.function(AlgorithmConfig(name=cast(Any, name))) is LOSSES[name]


def test_it_gets_the_inputs_and_its_result_is_taken_as_it_is(own: Any) -> None:
    seen = []

    def loss(given: LossInputs) -> Loss:
        seen.append(given)
        return MADE

    assert own(loss)(GIVEN) is MADE
    assert seen == [GIVEN]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere:loss", "cannot be imported: ModuleNotFoundError: No module named 'nowhere'"),
        ("nowhere", "cannot be imported"),
        ("os:nothing", "cannot be imported: AttributeError"),
        ("os:sep", "is a str, not a function"),
    ],
)
def test_a_wrong_name_is_refused_before_training(name: str, words: str) -> None:
    with pytest.raises(OwnCodeError, match=words):
        own_loss.function(AlgorithmConfig(loss=name))


def test_what_it_raises_is_one_line_with_its_cause(own: Any) -> None:
    def loss(_: LossInputs) -> Loss:
        raise ZeroDivisionError("two\nlines")

    with pytest.raises(OwnCodeError, match="mend it: ZeroDivisionError: two lines") as raised:
        own(loss)(GIVEN)
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_a_full_memory_is_no_mistake_of_the_loss(own: Any) -> None:
    def loss(_: LossInputs) -> Loss:
        raise torch.OutOfMemoryError

    with pytest.raises(torch.OutOfMemoryError):
        own(loss)(GIVEN)


def test_it_must_give_a_loss(own: Any) -> None:
    with pytest.raises(OwnCodeError, match="gives a Tensor; it must give a Loss"):
        own(lambda _: ZERO)(GIVEN)
