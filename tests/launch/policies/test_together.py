"""Trains several networks in one process: whose turn it is, how long they wait, who ends alone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from headrace.broker.errors import DivergedError
from headrace.launch.config import run_file
from headrace.launch.config.run_file import ConfigError
from headrace.launch.policies import together
from headrace.launch.process import logs, runtime
from headrace.launch.process.log_lines import Identity
from headrace.launch.roles.learner import LearnerProcess
from headrace.launch.roles.options import LearnerOptions
from headrace.learner.train_parts import Turns


@pytest.fixture
def process() -> LearnerProcess:
    nothing: Any = mock.Mock()
    return LearnerProcess(nothing, nothing, nothing, nothing, [])


class Works:
    """Makes work that writes down its turns: "a0" is the first of "a"."""

    def __init__(self, process: LearnerProcess) -> None:
        self.taken: list[str] = []
        self.patience: list[float] = []  # in each turn
        self.closed: list[str] = []
        self.process = process

    def of(
        self, name: str, turns: int, end: Callable[[], int], *, got_on: bool = True
    ) -> Turns[int]:
        try:
            for turn in range(turns):
                self.taken.append(f"{name}{turn}")
                self.patience.append(self.process.patience_s)
                yield got_on
            return end()
        finally:
            self.closed.append(name)


def diverges() -> int:
    raise DivergedError("training has diverged")


def breaks() -> int:
    raise RuntimeError("no such layer")


def test_each_has_a_turn_until_it_ends(process: LearnerProcess) -> None:
    works = Works(process)
    status = together.in_turns(
        process,
        {"a": works.of("a", 1, lambda: runtime.LIMIT), "b": works.of("b", 3, lambda: runtime.OK)},
    )
    assert works.taken == ["a0", "b0", "b1", "b2"] and works.closed == ["a", "b"]
    assert status == runtime.LIMIT  # the worst


def test_they_wait_for_batches_only_where_nobody_has_one(process: LearnerProcess) -> None:
    works = Works(process)
    idle = works.of("a", 2, lambda: 0, got_on=False), works.of("b", 2, lambda: 0, got_on=False)
    together.in_turns(process, dict(zip("ab", idle, strict=True)))
    assert works.patience == [0, 0, 0.001, 0.001]
    works.patience.clear()
    busy = works.of("a", 2, lambda: 0, got_on=False), works.of("b", 2, lambda: 0)
    together.in_turns(process, dict(zip("ab", busy, strict=True)))
    assert works.patience == [0, 0, 0, 0]


def test_one_that_diverges_ends_alone(process: LearnerProcess) -> None:
    works = Works(process)
    found = {"a": works.of("a", 1, diverges), "b": works.of("b", 3, lambda: runtime.OK)}
    assert together.in_turns(process, found) == runtime.DIVERGED
    assert works.taken == ["a0", "b0", "b1", "b2"]


def test_an_error_ends_all_of_them_in_order(process: LearnerProcess) -> None:
    works = Works(process)
    found = {"a": works.of("a", 9, lambda: 0), "b": works.of("b", 1, breaks)}
    with pytest.raises(RuntimeError, match="no such layer"):
        together.in_turns(process, found)
    assert works.closed == ["b", "a"]


def test_each_logs_by_its_own_name(process: LearnerProcess) -> None:
    said: list[tuple[str, str]] = []

    def speaks(name: str) -> Turns[int]:
        logs.set_identity(inc=len(name))  # as a role does at its start
        for _ in range(2):
            now = logs.swap_identity(Identity())
            logs.swap_identity(now)
            said.append((now.run, now.inc))
            yield True
        return 0

    together.in_turns(process, {"a": speaks("a"), "bb": speaks("bb")})
    assert said == [("a", f"{1:016x}"), ("bb", f"{2:016x}")] * 2


@pytest.mark.parametrize(
    ("sets", "ranks", "words"),
    [
        (["run.name=two", "learner.threads=2"], 1, "one has learner.threads = 1, two 2: one"),
        (["run.name=one"], 1, "two runs of one learner are called one"),
        (["run.name=two", "pacing.batch_unrolls=3"], 2, "3 cannot be shared by 2 ranks"),
    ],
)
def test_what_one_process_cannot_train_is_refused(
    caplog: Any, monkeypatch: pytest.MonkeyPatch, sets: list[str], ranks: int, words: str
) -> None:
    monkeypatch.setenv("WORLD_SIZE", str(ranks))
    runs = [run_file.load("cartpole", one) for one in (["run.name=one"], sets)]
    options = LearnerOptions("ipc:///x", Path(), resume=False)
    assert together.learn([(run, options) for run in runs]) == runtime.YOUR_INPUT
    assert words in caplog.text


def test_what_is_trained_in_turns_is_not_recorded(caplog: Any) -> None:
    runs = [run_file.load("cartpole", [f"run.name={name}"]) for name in "ab"]
    options = LearnerOptions("ipc:///x", Path(), resume=False, record=True)
    assert together.learn([(run, options) for run in runs]) == ConfigError.status
    assert "--record" in caplog.text
