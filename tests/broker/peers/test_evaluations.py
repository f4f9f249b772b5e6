"""Tests that a learner reads evaluations from a broker's status."""

from typing import Any

import pytest

from headrace.broker.peers.evaluations import HeardEvaluations


def status(**said: float) -> dict[str, Any]:
    return {"evaluators": [{"name": "evaluator", **said}]}


def test_the_best_of_enough_episodes_counts() -> None:
    heard = HeardEvaluations(episodes=20, now=0.0)
    heard.hear(status(), 1.0)  # it has evaluated nothing yet
    assert heard.best is None
    heard.hear(status(episodes=19.0, best=99.0, best_version=1.0), 2.0)
    assert heard.best is None
    heard.hear(status(episodes=20.0, mean=5.0, best=7.0, best_version=1.0), 3.0)
    heard.hear(status(episodes=20.0, mean=6.0, best=6.0, best_version=9.0), 4.0)  # began anew
    assert heard.best == 7.0


def test_a_metric_of_evaluations_may_be_wanted() -> None:
    heard = HeardEvaluations("metric.won", episodes=20, now=0.0)
    told = {"episodes": 20.0, "best": 9.0, "best_version": 1.0, "metric.won": 0.5}
    heard.hear(status(**told), 1.0)  # not of every episode
    assert heard.best is None
    heard.hear(status(**told, **{"best.metric.won": 0.25, "best_version.metric.won": 1.0}), 2.0)
    assert heard.best == 0.25


def test_those_of_another_learners_weights_do_not() -> None:
    heard = HeardEvaluations(episodes=1, now=0.0)
    heard.since = 10
    heard.hear(status(episodes=5.0, best=7.0, best_version=9.0), 1.0)
    assert heard.best is None
    heard.hear(status(episodes=5.0, best=3.0, best_version=10.0), 1.0)
    assert heard.best == 3.0


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"evaluators": []}, "no evaluator is connected"),
        (status(episodes=5.0), "fewer than evaluate.episodes = 20"),
    ],
)
def test_nobody_who_counts_is_said_once_and_again_after_minutes(
    wrong: dict[str, Any], words: str
) -> None:
    heard = HeardEvaluations(episodes=20, now=0.0)
    said = {now: heard.hear(wrong, float(now)) for now in range(700)}
    assert [now for now, line in said.items() if line] == [20, 320, 620]
    assert words in said[20]
    assert heard.hear(status(), 700.0) == ""
    assert heard.hear(wrong, 719.0) == ""
    assert heard.hear(wrong, 720.0)  # it has left


@pytest.mark.parametrize("nonsense", [None, [], {}, {"evaluators": 3}, {"evaluators": [4, None]}])
def test_a_status_that_makes_no_sense_is_no_harm(nonsense: Any) -> None:
    heard = HeardEvaluations(episodes=20, now=0.0)
    assert heard.hear(nonsense, 1.0) == ""
    assert heard.best is None
