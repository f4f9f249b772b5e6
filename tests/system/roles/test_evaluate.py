"""An evaluator beside a run, as processes: what it leaves, how it ends; that it harms nobody."""

import json
import os
import re
import signal
import time
from typing import Any

import pytest

from headrace.launch.results import loaded_run
from tests.system.commands.test_metrics import by, port_of, scrape, value
from tests.system.commands.test_train import check_books
from tests.system.conftest import Place, Process, until

QUICK_WORDS = ("--every-s", "0.1", "--episodes", "5", "--share", "1")
SETS = ("evaluate.every_s=0.1", "evaluate.episodes=5", "evaluate.share=1")
QUICK = tuple(word for key in SETS for word in ("--set", key))


def lines(place: Place) -> list[dict[str, Any]]:
    path = place.out / "evaluations.jsonl"
    if not path.exists():
        return []
    text = path.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def evaluations(place: Place, more: int = 1) -> None:
    goal = len(lines(place)) + more
    until(lambda: len(lines(place)) >= goal, f"{goal} evaluations, have ", why=lambda: lines(place))


def pid_of(place: Place) -> int:
    """Of the evaluator of `headrace train`: the process with a lower priority than ours."""
    ours = os.getpriority(os.PRIO_PROCESS, 0)

    def look() -> int | None:
        for pid in place.alive():
            try:
                if os.getpriority(os.PRIO_PROCESS, pid) > ours:
                    return pid
            except ProcessLookupError:
                continue
        return None

    found: int = until(look, "an evaluator")
    return found


def evaluator(place: Place, *arguments: str) -> Process:
    return place.headrace("evaluate", "--broker", place.ipc, "--out", str(place.out), *arguments)


def test_a_run_with_an_evaluator(place: Place) -> None:
    train = place.train("--stop-steps", "30000", "--evaluate", *QUICK)
    assert train.ends() == 0, train.text()
    place.nothing_is_left()
    check_books(place)
    found, summary = lines(place), place.summary()
    assert len(found) > 1
    versions = [line["version"] for line in found]
    assert versions == sorted(set(versions))
    assert versions[-1] == summary["version"]  # the last weights
    for line in found:
        assert line["episodes"] == 5
        assert line["low"] <= line["mean"] <= line["high"]
        assert line["mean"] == line["length"]  # CartPole pays 1 a step
    # It may have joined too late to hear of them.
    steps = [line["trained_steps"] for line in found[-1:] if "trained_steps" in line]
    assert steps in ([], [pytest.approx(summary["trained_steps"], rel=0.1)])
    highest = max(line["mean"] for line in found)
    assert summary["evaluation"]["last"] == found[-1]
    assert summary["evaluation"]["best"]["mean"] == highest
    best = loaded_run.find_checkpoint(place.out, "best")
    assert best.state["score"] == summary["evaluation"]["best"]
    assert best.version == summary["evaluation"]["best"]["version"]
    assert str(best.path) in train.text()
    assert "Traceback" not in train.text()


def test_a_killed_evaluator_does_no_harm_and_comes_back(place: Place) -> None:
    train = place.train("--stop-seconds", "600", "--evaluate", *QUICK)
    evaluations(place, 2)
    for _ in range(2):
        pid = pid_of(place)
        os.kill(pid, signal.SIGKILL)
        train.says("evaluator was killed by SIGKILL; starting it again")
        place.trains(50)  # unrolls go on meanwhile
        evaluations(place, 2)
    train.signal(signal.SIGTERM)
    assert train.ends() == 3, train.text()  # stopped
    place.nothing_is_left()
    check_books(place)
    versions = [line["version"] for line in lines(place)]
    assert versions == sorted(versions)


def test_a_best_that_cannot_be_kept_does_not_end_the_run(place: Place) -> None:
    place.out.mkdir()
    (place.out / "best").write_text("in the way")
    train = place.train("--stop-steps", "20000", "--evaluate", *QUICK)
    assert train.ends() == 0, train.text()
    assert "the best weights are not kept" in train.text()
    assert re.search(r"best +not kept", train.text())
    assert place.summary()["evaluation"]["last"] == lines(place)[-1]
    check_books(place)


def test_one_that_cannot_work_does_not_end_the_run(place: Place) -> None:
    (place.folder / "choosy.py").write_text(
        "import os, gymnasium\n"
        "def make():\n"
        "    if os.nice(0) > os.getpriority(os.PRIO_PROCESS, os.getppid()):\n"
        "        raise RuntimeError('not for me')\n"
        "    return gymnasium.make('CartPole-v1')\n"
    )
    train = place.train("--stop-seconds", "600", "--evaluate", "--set", "env.id=choosy:make")
    train.says("the run goes on without evaluations")
    assert "not for me" in train.text()
    place.trains(50)
    train.signal(signal.SIGTERM)
    assert train.ends() == 3, train.text()  # stopped
    assert place.summary()["evaluation"] is None
    check_books(place)
    place.nothing_is_left()


def test_by_hand_from_nothing_but_an_address(place: Place) -> None:
    broker = place.broker("--metrics-port", "0")
    alone = place.headrace(
        "evaluate",
        "--broker",
        place.ipc,
        "--out",
        str(place.folder / "scores"),
        "--episodes",
        "3",
        "--every-s",
        "0",
        "--metrics-port",
        "0",
    )
    broker.says("evaluator .* joins")
    learner, actor = place.learner(), place.actor()
    place.trains(50)
    alone.says(r"version \d+: return .* 3 episodes in")
    families = scrape(port_of(alone))
    ours = {name for name in families if name.startswith("headrace_")}
    assert all(name.startswith(("headrace_evaluator_", "headrace_build")) for name in ours)
    assert value(families["headrace_evaluator_episodes"]) == 3
    assert value(families["headrace_evaluator_return_mean"]) > 0
    at_broker = scrape(port_of(broker))
    assert by(at_broker["headrace_broker_sessions"], "role") == {
        "actor": 1,
        "learner": 1,
        "watcher": 0,
        "evaluator": 1,
        "node": 0,
    }

    began = time.monotonic()
    assert alone.term() == 0, alone.text()
    assert time.monotonic() - began < 15.0  # it does not wait for last weights, for 30 s
    broker.says("evaluator .* leaves: stopped")
    assert (place.folder / "scores" / "run.toml").exists()
    place.trains(20)
    for process in (actor, learner, broker):
        assert process.term() == 0, process.text()
        assert "Traceback" not in process.text()
    account = place.account()
    assert (account.unaccounted(), account.untrue) == (0, 0)
    place.nothing_is_left()


def test_one_that_is_stopped_takes_no_credit_with_it(place: Place) -> None:
    """SIGSTOP: it neither reads nor beats, and the samplers' credit is as if it were not there."""
    broker, learner = place.broker("--metrics-port", "0"), place.learner()
    actor, alone = place.actor(), evaluator(place, "--every-s", "0")
    alone.says("version .* episodes in")
    alone.signal(signal.SIGSTOP)
    try:
        place.trains(200)
        port = port_of(broker)
        # Samplers alone are counted: with the one there is, at most one lags.
        assert value(scrape(port)["headrace_broker_weights_lagging_actors"]) <= 1
        until(
            lambda: by(scrape(port)["headrace_broker_sessions"], "role")["evaluator"] == 0,
            "a silent evaluator is forgotten",
        )
        place.trains(200)
    finally:
        alone.signal(signal.SIGCONT)
    before = len(lines(place))
    until(lambda: len(lines(place)) > before + 1, "it goes on")
    for process in (alone, actor, learner, broker):
        assert process.term() == 0, process.text()
    account = place.account()
    assert (account.unaccounted(), account.untrue) == (0, 0)


def test_an_address_that_is_none(place: Place) -> None:
    alone = place.headrace("evaluate", "--broker", "nowhere")
    assert alone.ends() == 2
    assert len(alone.lines()) == 1


METERED = """
import gymnasium

class Env(gymnasium.Wrapper):
    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))

    def reset(self, **more):
        self.steps = 0
        return self.env.reset(**more)

    def step(self, action):
        obs, reward, ended, cut, info = self.env.step(action)
        self.steps += 1
        return obs, reward, ended, cut, {**info, "steps": self.steps}
"""
GOAL = ("--set", "stop.metric=evaluation", "--set", "evaluate.greedy=false", *QUICK)


def test_an_evaluation_reaches_the_goal(place: Place) -> None:
    """headrace train starts the evaluator by itself."""
    train = place.train("--stop-return", "25", "--stop-steps", "2000000", *GOAL)
    assert train.ends() == 0, train.text()
    summary = place.summary()
    assert summary["stop_reason"] == "return"
    assert summary["evaluation"]["best"]["mean"] >= 25
    assert 0 < summary["solved_at_steps"] == summary["trained_steps"]
    assert "no evaluator is connected" not in train.text()
    again = place.train("--resume", "--evaluate")
    assert again.ends() == 0, again.text()
    assert "its mean return in an evaluation is " in again.text()
    place.nothing_is_left()


def test_a_goal_by_evaluation_among_roles_of_their_own(place: Place) -> None:
    broker, actor, one = place.broker(), place.actor(), evaluator(place, *QUICK_WORDS)
    learner = place.learner("--set", "stop.return=9", *GOAL[:2], "--set", "evaluate.episodes=5")
    assert learner.ends() == 0, learner.text()
    assert actor.ends() == 0
    assert one.ends() == 0
    assert max(line["mean"] for line in lines(place)) >= 9
    assert broker.term() == 0


def test_a_metric_of_an_evaluation_reaches_the_goal(place: Place) -> None:
    place.toml("metered.py", METERED)
    sets = ("env.id=metered:Env", 'env.metrics=["steps"]', "stop.metric=evaluation.steps")
    words = [word for one in sets for word in ("--set", one)]
    train = place.train("--stop-return", "25", "--stop-steps", "2000000", *words, *GOAL[2:])
    assert train.ends() == 0, train.text()
    summary = place.summary()
    assert summary["stop_reason"] == "return"
    assert max(line["metric.steps"] for line in lines(place)) >= 25
    again = place.train("--resume", "--evaluate")
    assert again.ends() == 0, again.text()
    assert "its mean evaluation.steps is " in again.text()


def test_a_goal_by_evaluation_needs_a_return(place: Place) -> None:
    train = place.train("--set", "stop.metric=evaluation")
    assert train.ends() == 2
    (line,) = train.lines()
    assert 'stop.metric is "evaluation", and stop.return is not set' in line
