"""The places of evaluations in the curve, and the lines read from files that a kill has torn."""

from pathlib import Path
from typing import Any

import pytest

from headrace.launch.results import learning_curve

HISTORY = [
    {"version": 10, "trained_steps": 1000, "mean_return": 5.0},
    {"version": 30, "trained_steps": 5000, "mean_return": 9.0},
]


def entry(version: int, **other: Any) -> dict[str, Any]:
    return {"version": version, "mean": 7.0, "low": 6.0, "high": 9.0, "trained_steps": 1, **other}


@pytest.mark.parametrize(
    ("version", "steps"), [(0, 0), (5, 500), (10, 1000), (15, 2000), (30, 5000)]
)
def test_versions_between_two_lines_of_the_history_lie_between_them(
    version: int, steps: int
) -> None:
    assert learning_curve.evaluation_marks(HISTORY, [entry(version)])[0] == [steps]


def test_beyond_the_history_the_evaluator_knows_best() -> None:
    assert learning_curve.evaluation_marks(HISTORY, [entry(31, trained_steps=5200)])[0] == [5200]
    assert learning_curve.evaluation_marks(HISTORY, [entry(31, trained_steps=None)])[0] == [5000]
    assert learning_curve.evaluation_marks([], [entry(31, trained_steps=None)])[0] == []


def test_bars_reach_from_the_mean_to_both_ends() -> None:
    alone = entry(30, low=None, high=None)
    steps, means, (down, up) = learning_curve.evaluation_marks(HISTORY, [entry(10), alone])
    assert (steps, means, down, up) == ([1000, 5000], [7.0, 7.0], [1.0, 0.0], [2.0, 0.0])


def test_torn_lines_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "evaluations.jsonl"
    assert learning_curve.read(file) == []
    file.write_text('{"version": 1}\n{"vers\n[3]\n{"version": 2}\n{"version')
    assert learning_curve.read(file) == [{"version": 1}, {"version": 2}]


@pytest.mark.slow
def test_a_picture_with_and_without_evaluations(tmp_path: Path) -> None:
    sizes = []
    for evaluations in ([], [entry(10), entry(20)]):
        to = tmp_path / "curve.png"
        learning_curve.draw(HISTORY, 8.0, "title", to, evaluations=evaluations)
        assert to.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
        sizes.append(to.stat().st_size)
    assert sizes[0] != sizes[1]
