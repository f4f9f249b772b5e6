"""Tests what is said of a run while it trains, by the status that its broker serves."""

import functools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.histograms import Buckets
from headrace.launch.cli import main
from headrace.launch.config import run_file
from headrace.launch.explain import explain, running
from headrace.launch.explain.watched import WatchedRun
from tests.launch.monitor.statuses import status

COLUMNS = ("t", "trained_steps", "entropy", "mean_return", "kl", "value_loss", "time_wait", "lr")


@functools.cache
def cartpole() -> run_file.Run:
    return run_file.load("cartpole")


def told(second: int, **more: float) -> dict[str, Any]:
    learner = {"name": "l", "t": 1.0 * second, "trained_steps": 100.0 * second, "entropy": 0.5}
    outcomes = {"trained": 95, "stale": 5}
    return {"outcomes": outcomes, "learners": [learner | more], "weights_bytes": 40_000}


def totals(second: int, **shares: float) -> dict[str, float]:
    spent = {f"{name}_s": share * second for name, share in shares.items()}
    return {"wall_s": 1.0 * second, "env_steps": 1e3 * second, "bytes": 500.0 * second, **spent}


def watched(seconds: range, **shares: float) -> WatchedRun:
    found, ready = WatchedRun(cartpole()), Buckets([0.1])
    for second in seconds:
        ready.add(0.25)
        status = told(second, time_wait=0.9, time_forward=0.1)
        found.look(status, totals(second, **shares), ready)
    return found


def test_a_run_that_trains_is_judged_as_its_folder_would_be() -> None:
    found = watched(range(0, 60, 3), wait_env=0.9, env=0.9)
    first, *_, learner, samplers = found.lines()
    assert first.startswith(
        "1. the environment takes 90 % of the samplers' time; another actor.stepping"
    )
    assert learner == "learner   wait 90 %, forward 10 %"
    assert samplers == "samplers  wait env 90 %, the rest 10 %"
    assert abs(found.figures().step_s - 0.0009) < 1e-9
    assert found.figures().line_s == 0.25 and found.figures().weights_bytes == 40_000
    assert abs(found.figures().unroll_bytes_s - 500) < 1e-9
    assert "the environment" in "".join(
        explain.lines(found.figures(), explain.findings(found.figures()))
    )


def test_before_it_trains_and_a_moment_later_it_says_so() -> None:
    found = WatchedRun(cartpole())
    assert found.lines()[0] == "nothing was trained"
    found.look({"outcomes": {}, "learners": [], "weights_bytes": 0}, {}, Buckets([0.1]))
    assert found.lines()[0] == "nothing was trained"
    assert watched(range(0, 6, 3)).lines()[0] == "the run is too short to tell"


def test_a_run_of_a_week_takes_no_more_memory() -> None:
    found = watched(range(0, 60_000, 3))
    assert len(found.figures().lines) <= 256
    assert found.figures().seconds > 59_000


def test_what_was_undone_by_an_older_checkpoint_is_forgotten() -> None:
    found = watched(range(0, 60, 3))
    found.look(told(9), totals(63), Buckets([0.1]))
    assert [line["t"] for line in found.figures().lines] == [0.0, 3.0, 6.0, 9.0]


NUMBER = st.floats() | st.integers(-(10**20), 10**20)
LOOK = st.tuples(
    st.dictionaries(st.sampled_from(COLUMNS), NUMBER),
    st.dictionaries(st.sampled_from(list(totals(1, wait_env=1))), NUMBER),
    NUMBER,
)


@given(looks=st.lists(LOOK, max_size=12))
@settings(max_examples=25, deadline=None)
def test_no_learner_says_anything_too_odd(looks: list[tuple[Any, Any, float]]) -> None:
    found = WatchedRun(cartpole())
    for learner, total, stale in looks:
        status = {"outcomes": {"stale": stale}, "learners": [learner], "weights_bytes": 1}
        found.look(status, total, Buckets([0.1]))
    assert all(0 < len(line) <= 400 for line in found.lines())
    assert len(found.lines()) <= 7


class Broker:
    """In the place of a client: a broker that has judged the run at its third answer."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self.answers = list(answers)
        self.status: dict[str, Any] = {}
        self.last_status_at: float | None = None
        self.refused = ""

    def ask(self) -> None:
        self.status = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        self.last_status_at = 1.0

    def wait(self, seconds: float) -> None: ...
    def receive(self) -> None: ...
    def close(self) -> None: ...


def test_explain_asks_a_broker_until_it_has_judged_its_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    young, told = (
        status(explain=[]),
        status(explain=["1. it is \x1b[31mlate", "learner   wait 9 %"]),
    )
    monkeypatch.setattr(running, "_ASK_EVERY_S", 0.0)
    monkeypatch.setattr(running, "StatusClient", lambda *_: Broker(young, young, told))
    assert main(["explain", "--broker", "tcp://127.0.0.1:1"]) == 0
    assert capsys.readouterr().out == "1. it is ?[31mlate\nlearner   wait 9 %\n"


def test_of_an_older_broker_and_of_nothing_it_says_so_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    old = {name: held for name, held in status().items() if name != "explain"}
    monkeypatch.setattr(running, "_ASK_EVERY_S", 0.0)
    monkeypatch.setattr(running, "StatusClient", lambda *_: Broker(old))
    for words, complaint in (
        (("--broker", "tcp://127.0.0.1:1"), "its release does not explain a run"),
        ((), "name the run's folder, or the --broker"),
        (("there", "--broker", "tcp://127.0.0.1:1"), "name the run's folder, or the --broker"),
    ):
        assert main(["explain", *words]) == 2
        said = capsys.readouterr().err
        assert complaint in said and said.count("\n") == 1
