"""Tests what trials are compared by: the figures taken from a folder, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.launch.config import run_file
from headrace.launch.search import metric

SUMMARY = {
    "stop_reason": "steps",
    "solved_at_s": 3.5,
    "solved_at_steps": 4000,
    "trained_steps": 9000,
    "wall_s": 7.0,
}
HISTORY = {"t": 1.0, "mean_return": 12.5, "metric.success": 0.75}
EVALUATIONS = (
    {"t": 0.5, "mean": 30.0, "metric.success": 0.5},
    {"t": 1.0, "mean": 20.0, "metric.success": 0.25},
)


def chosen(name: str, *sets: str) -> metric.Metric:
    return metric.choose(name, run_file.load("cartpole", ["env.metrics=['success']", *sets]))


def write(out: Path, summary: Any, *history: Any) -> Path:
    out.mkdir(parents=True, exist_ok=True)
    (out / "summary.json").write_text(json.dumps(summary))
    (out / "history.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in history))
    return out


@pytest.mark.parametrize(
    ("name", "value", "cost"),
    [
        ("evaluation", 20.0, 7.0),
        ("return", 12.5, 7.0),
        ("success", 0.75, 7.0),
        ("evaluation.success", 0.25, 7.0),
        ("time_to_return", 3.5, 9000),
        ("steps_to_return", 4000, 7.0),
    ],
)
def test_each_reads_its_figure_and_what_that_cost(
    name: str, value: float, cost: float, tmp_path: Path
) -> None:
    out = write(tmp_path, SUMMARY, HISTORY)
    (out / "evaluations.jsonl").write_text("\n".join(map(json.dumps, EVALUATIONS)))
    assert chosen(name).value(out) == value and chosen(name).cost(out) == cost


@pytest.mark.parametrize(
    "name", ["evaluation", "evaluation.success", "return", "success", "time_to_return"]
)
@pytest.mark.parametrize(
    "summary", [{}, [], "x", {"stop_reason": "steps"}, {"stop_reason": "stopped", "mean_return": 9}]
)
def test_a_training_that_did_not_get_there_has_none(
    name: str, summary: Any, tmp_path: Path
) -> None:
    assert chosen(name).value(write(tmp_path, summary)) is None


def test_scores_are_compared_on_the_way_once_their_steps_are_trained(tmp_path: Path) -> None:
    score = chosen("return", "stop.steps=1000")
    assert score.rungs == [250, 500] and not chosen("time_to_return").rungs
    write(tmp_path, {}, {"t": 1, "trained_steps": 240, "mean_return": 5.0})
    assert score.score_at(tmp_path, 250) is None
    write(tmp_path, {}, {"t": 1, "trained_steps": 260, "mean_return": 6.0, "metric.success": 0.5})
    assert score.score_at(tmp_path, 250) == 6.0
    assert chosen("success").score_at(tmp_path, 250) == 0.5
    assert chosen("evaluation").score_at(tmp_path, 250) is None
    line = '{"trained_steps": 300, "mean": 8.0, "metric.success": 0.5}\n{"torn'
    (tmp_path / "evaluations.jsonl").write_text(line)
    assert chosen("evaluation").score_at(tmp_path, 250) == 8.0
    assert chosen("evaluation.success").score_at(tmp_path, 250) == 0.5


def test_an_evaluator_plays_where_something_asks_for_evaluations() -> None:
    assert chosen("evaluation").evaluates and chosen("evaluation.success").evaluates
    assert not any(chosen(name).evaluates for name in ("return", "success", "time_to_return"))
    # What a score is compared by ends no run; a time is of whatever ends it.
    by_evaluation = ("stop.metric=evaluation", "stop.return=400")
    assert not chosen("return", *by_evaluation).evaluates
    assert chosen("time_to_return", *by_evaluation).evaluates


def test_the_gap_is_from_the_best_return_so_far_to_the_goal(tmp_path: Path) -> None:
    goal = chosen("time_to_return", "stop.return=475")
    lines = [{"t": 2.0, "mean_return": mean} for mean in (10.0, 300.0, None, 200.0)]
    assert goal.gap(write(tmp_path, {}, *lines)) == 175.0
    assert goal.spent(tmp_path) == 2.0
    assert goal.gap(write(tmp_path, {})) is None and goal.spent(tmp_path) == 0.0


@pytest.mark.parametrize(
    ("name", "sets", "complaint"),
    [
        (
            "speed",
            (),
            "evaluation, return, success, evaluation.success, time_to_return, steps_to_return",
        ),
        ("return", ("stop.steps=none",), "compares runs of equal length"),
        ("time_to_return", ("stop.return=none",), "needs a goal"),
        ("steps_to_return", ("stop.steps=none",), "needs a limit"),
    ],
)
def test_a_run_that_cannot_be_compared_by_it_is_refused(
    name: str, sets: tuple[str, ...], complaint: str
) -> None:
    with pytest.raises(run_file.ConfigError, match=complaint):
        chosen(name, *sets)
