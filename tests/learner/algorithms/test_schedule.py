"""Numbers that change with trained steps."""

import pytest

from headrace.learner.algorithms.schedule import schedule_fault, value_at
from headrace.learner.models.named_code import OwnCodeError


def test_a_number_stays() -> None:
    assert value_at(0.5, 0) == value_at(0.5, 10**9) == 0.5


@pytest.mark.parametrize(
    ("steps", "value"),
    [
        (0, 1.0),
        (100, 1.0),
        (150, 0.75),
        (200, 0.5),
        (250, 0.5),
        (300, 0.5),
        (350, 0.25),
        (400, 0.0),
        (10**9, 0.0),
    ],
)
def test_pieces_are_straight_lines(steps: int, value: float) -> None:
    schedule = ((100, 1.0), (200, 0.5), (300, 0.5), (400, 0.0))
    assert value_at(schedule, steps) == pytest.approx(value)


def test_a_single_pair_is_a_constant() -> None:
    assert value_at(((7, 0.25),), 0) == value_at(((7, 0.25),), 8) == 0.25


def test_faults_are_said() -> None:
    assert schedule_fault(1.0) == schedule_fault(((0, 1.0), (5, 0.0))) == ""
    assert "empty" in schedule_fault(())
    assert "rise" in schedule_fault(((5, 1.0), (5, 0.0)))


def falling(steps: int) -> float:
    return {0: 0.5, 1: -1.0, 2: float("nan")}[steps]


def test_a_function_of_the_users() -> None:
    own = f"{__name__}:falling"
    assert schedule_fault(own) == "" and value_at(own, 0) == 0.5
    for steps, words in ((1, "gives -1.0 at 1"), (2, "gives nan"), (3, "mend it: KeyError")):
        with pytest.raises(OwnCodeError, match=words):
            value_at(own, steps)
    with pytest.raises(OwnCodeError, match="cannot be imported"):
        value_at("nowhere:falling", 0)
    assert "is no number" in schedule_fault("often")
