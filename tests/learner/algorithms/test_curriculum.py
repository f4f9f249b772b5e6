"""A curriculum of the user's: asked at every version, its answer is a part of the weights."""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from headrace.learner.algorithms.curriculum import Curriculum, Moment
from headrace.learner.config import ModelConfig
from headrace.learner.models.build import SETTINGS, Model, build
from headrace.learner.models.named_code import OwnCodeError
from headrace.learner.spaces import Leaf, Spaces, discrete
from headrace.learner.weights import FlatWeights, layout_digest

SPACES = Spaces((Leaf("obs", "<f4", (3,)),), discrete(2), settings=("hard", "length"))
BEGUN = Moment(0, 0, 0, None, {}, 0.0)
INITIAL = {"length": 5, "hard": False}


@pytest.fixture
def model() -> Model:
    return build(ModelConfig(), SPACES, seed=1)


@pytest.fixture
def asks(monkeypatch: pytest.MonkeyPatch, model: Model) -> Callable[[Any], Curriculum]:
    def made(function: Any) -> Curriculum:
        module = ModuleType("of_theirs")
        module.harder = function  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "of_theirs", module)
        return Curriculum("of_theirs:harder", INITIAL, model)

    return made


def test_its_answer_travels_with_the_weights(asks: Any, model: Model) -> None:
    curriculum = asks(lambda moment: {"length": 5 + moment.version})
    curriculum.update(BEGUN._replace(version=2))
    assert curriculum.figures() == {"setting.hard": 0.0, "setting.length": 7.0}
    body = FlatWeights(model).dump()
    other = build(ModelConfig(), SPACES, seed=2)
    FlatWeights(other).load(body)
    assert getattr(other, SETTINGS).tolist() == [0.0, 7.0]


def test_what_it_does_not_name_stays(asks: Any) -> None:
    curriculum = asks(lambda moment: {} if moment.version else {"hard": True})
    for version in (0, 1):
        curriculum.update(BEGUN._replace(version=version))
    assert curriculum.now == {"length": 5, "hard": True}


def test_without_a_function_the_runs_settings_are_sent(model: Model) -> None:
    Curriculum("", INITIAL, model).update(BEGUN)
    assert getattr(model, SETTINGS).tolist() == [0.0, 5.0]


def test_a_run_without_settings_has_the_layout_that_it_had() -> None:
    plain = build(ModelConfig(), Spaces(SPACES.observation, SPACES.action), seed=1)
    assert not hasattr(plain, SETTINGS)
    assert layout_digest(plain) != layout_digest(build(ModelConfig(), SPACES, seed=1))
    curriculum = Curriculum()
    curriculum.update(BEGUN)
    assert curriculum.figures() == {}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (5, "gives a int; it must give a dict"),
        ({"wind": 1}, r"sets 'wind'; env.settings has \['hard', 'length'\]"),
        ({"length": "far"}, "length = 'far', which is no number"),
        ({"length": float("nan")}, "which is no number"),
    ],
)
def test_a_wrong_answer_is_one_line(asks: Any, answer: Any, words: str) -> None:
    with pytest.raises(OwnCodeError, match=words):
        asks(lambda _: answer).update(BEGUN)


def test_what_it_raises_is_one_line_with_its_cause(asks: Any) -> None:
    def fails(_: Moment) -> dict[str, float]:
        raise ZeroDivisionError("two\nlines")

    with pytest.raises(OwnCodeError, match="mend it: ZeroDivisionError: two lines") as raised:
        asks(fails).update(BEGUN)
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_a_wrong_name_is_refused_before_training(model: Model) -> None:
    with pytest.raises(OwnCodeError, match=r'env.curriculum = "os:sep" is a str'):
        Curriculum("os:sep", INITIAL, model)
