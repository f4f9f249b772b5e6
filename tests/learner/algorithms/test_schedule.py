"""Numbers that change with trained steps."""

import pytest

from headrace.learner.algorithms.schedule import schedule_fault, value_at


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
