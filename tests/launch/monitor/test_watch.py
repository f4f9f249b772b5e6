"""The live view of a status."""

from typing import Any

import pytest

from headrace.launch.config.run_sections import StopSection
from headrace.launch.monitor.live_view import LiveView

STATUS: dict[str, Any] = {
    "version": 7,
    "weights": 7,
    "queued": 1,
    "leased": 2,
    "outcomes": {"trained": 3},
    "duplicates": 0,
    "actors": {"behind": 0, "count": 2, "env_steps": 640.0},
    "learners": [{"mean_return": 21.5, "lag": 0.25}],
}


def shown(capsys: Any, stop: StopSection = StopSection(), **more: Any) -> str:  # noqa: B008
    view = LiveView(run="small", stop=stop, began=0.0, quiet=False)
    view.show({**STATUS, **more})
    view.close()
    return str(capsys.readouterr().err)


@pytest.mark.parametrize("evaluators", [[], [{}]])
def test_without_a_score_nothing_is_said_of_one(capsys: Any, evaluators: list[Any]) -> None:
    line = shown(capsys, evaluators=evaluators)
    assert "evaluation" not in line
    assert "return 21.5  lag 0.25  version 7" in line


def test_the_last_score_is_shown(capsys: Any) -> None:
    said = {"mean": 30.0, "low": 28.5, "high": 31.5, "version": 6.0}
    line = shown(capsys, evaluators=[said])
    assert "return 21.5  evaluation 30.0 (28.5 to 31.5), version 6  lag" in line
    alone = {"mean": 30.0, "version": 6.0}
    assert "evaluation 30.0, version 6" in shown(capsys, evaluators=[{}, alone])


def test_the_goal_stands_beside_what_must_reach_it(capsys: Any) -> None:
    said = {"mean": 30.0, "low": 28.5, "high": 31.5, "version": 6.0}
    by = StopSection(return_=40.0, metric="evaluation")
    line = shown(capsys, stop=by, evaluators=[said])
    assert "return 21.5  evaluation 30.0 of 40 (28.5 to 31.5), version 6  lag" in line
    line = shown(capsys, stop=by, evaluators=[{}])
    assert "return 21.5  evaluation none yet of 40  lag" in line
    line = shown(capsys, stop=StopSection(return_=40.0), evaluators=[said])
    assert "return 21.5 of 40  evaluation 30.0 (28.5 to 31.5), version 6  lag" in line


def test_metrics_and_the_goal_of_one(capsys: Any) -> None:
    learner = {**STATUS["learners"][0], "metric.won": 0.25}
    line = shown(capsys, learners=[learner], evaluators=[{"metric.won": 0.5}])
    assert "return 21.5  won 0.25, evaluation 0.5  lag" in line
    goal = StopSection(return_=0.9, metric="won")
    line = shown(capsys, stop=goal, learners=[learner])
    assert "return 21.5  won 0.25 of 0.9  lag" in line
    assert "return 21.5  won none yet of 0.9  lag" in shown(capsys, stop=goal)


def test_a_metric_of_evaluations_as_the_goal(capsys: Any) -> None:
    goal = StopSection(return_=0.9, metric="evaluation.won")
    learner = {**STATUS["learners"][0], "metric.won": 0.25}
    line = shown(capsys, stop=goal, learners=[learner])
    assert "return 21.5  won 0.25, evaluation none yet of 0.9  lag" in line
    line = shown(capsys, stop=goal, learners=[learner], evaluators=[{"metric.won": 0.5}])
    assert "won 0.25, evaluation 0.5 of 0.9  lag" in line
    assert "won none yet, evaluation none yet of 0.9  lag" in shown(capsys, stop=goal)


def test_a_line_says_what_the_view_says_of_the_learner(capsys: Any) -> None:
    learner = {**STATUS["learners"][0], "mean_length": 55.5, "explained_variance": 0.875}
    line = shown(capsys, learners=[{**learner, "time_wait": 0.625, "time_forward": 0.25}])
    assert "  length 55.5  learner wait 62 %, forward 25 %  explained 0.88 of the" in line


def test_without_evaluators_nothing_is_missing(capsys: Any) -> None:
    assert "version 7" in shown(capsys)


def test_what_is_still_to_come_is_said(capsys: Any) -> None:
    view = LiveView(run="small", stop=StopSection(), began=0.0, quiet=False)
    view.show({})
    assert "the broker is starting" in capsys.readouterr().err
    assert "the learner is starting" in shown(capsys, learners=[])
    ended = shown(capsys, learners=[], over=True, evaluators=[{}])
    assert ended.endswith("the run is over; its last weights are evaluated\n")
    assert "no sampler is there yet" in shown(capsys, actors={"behind": 0, "count": 0})
    assert "starting" not in shown(capsys)


def test_a_total_that_falls_is_no_negative_rate() -> None:
    """A broker that was started again counts from nothing."""
    view = LiveView(run="small", stop=StopSection(), began=0.0, quiet=True)
    for at, steps in enumerate((0.0, 500.0, 1000.0, 100.0, 400.0)):
        view._rates.update({**STATUS, "uptime_s": at, "actors": {"env_steps": steps}})
        assert view._rate() >= 0
    assert view._rate() == 300.0
