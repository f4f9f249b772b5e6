"""Tests how the fastest settings are looked for, with trainings whose speed is made up."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from headrace.launch.cli import main
from headrace.launch.config import run_file
from headrace.launch.explain import figures as run_figures
from headrace.launch.explain import tune_speed
from headrace.launch.explain.figures import Figures
from headrace.launch.process import logs
from tests.launch.explain.recorded_faults import RECORDINGS


class Machine:
    """In the place of short trainings: as fast as `speed` says, a clock that goes on with each."""

    def __init__(self, speed: Any) -> None:
        self.speed, self.now, self.trained = speed, 0.0, 0

    def train(self, run: str, sets: Sequence[str], out: Path, asked: Any) -> Figures | None:
        del out, asked
        self.now += 8.0
        self.trained += 1
        loaded = run_file.load(run, sets)
        rate = self.speed(loaded)
        return None if rate is None else Figures(loaded, [], {}, {}, cores=2, played=rate)

    def monotonic(self) -> float:
        return self.now


def spread(run: run_file.Run) -> float:
    """Knows one optimum: two processes of 32 environments, in threads."""
    rows = run.unroll.envs * run.actor.groups
    rate = min(rows, 32.0) / max(rows / 32, 1) * min(run.actor.count, 2)
    return rate * (2 if run.actor.stepping == "threads" else 1)


@pytest.fixture(autouse=True)
def own_log_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "start", lambda *_, **__: None)


def tune(machine: Machine, monkeypatch: pytest.MonkeyPatch, to: Path, *words: str) -> int:
    monkeypatch.setattr(tune_speed, "_train", machine.train)
    monkeypatch.setattr(tune_speed, "time", machine)
    return main(["tune-speed", "cartpole", "--to", str(to), *words])


def test_it_finds_what_is_fastest_and_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine, to = Machine(spread), tmp_path / "fast.toml"
    sets = ("--set", "actor.count=1", "--set", "unroll.envs=4", "--set", "pacing.batch_unrolls=8")
    assert tune(machine, monkeypatch, to, *sets, "--budget", "10m") == 0
    found = run_file.load(str(to))
    assert spread(found) == 128
    assert found.unroll.envs * found.pacing.batch_unrolls <= 8 * 32
    assert f"headrace train {to}" in capsys.readouterr().out


def test_it_ends_in_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(spread)
    assert tune(machine, monkeypatch, tmp_path / "fast.toml") == 0
    assert machine.now <= 60 and machine.trained >= 6


def test_where_nothing_is_faster_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune(Machine(lambda _: 100.0), monkeypatch, tmp_path / "fast.toml") == 0
    assert "nothing tried was faster" in capsys.readouterr().out
    assert not (tmp_path / "fast.toml").exists()


def test_what_does_not_work_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(lambda run: None if run.unroll.envs != 16 else spread(run))
    assert tune(machine, monkeypatch, tmp_path / "fast.toml", "--budget", "10m") == 0
    assert run_file.load(str(tmp_path / "fast.toml")).unroll.envs == 16


def test_few_versions_say_less_than_what_was_played() -> None:
    few = Figures(run_file.load("cartpole"), [{"t": 1.0}] * 5, {}, {}, rate=9.0, played=4.0)
    assert tune_speed.Measured((), few).rate == 4.0
    many = Figures(run_file.load("cartpole"), [{"t": 1.0}] * 6, {}, {}, rate=9.0, played=4.0)
    assert tune_speed.Measured((), many).rate == 9.0


def test_one_that_plays_nothing_at_all_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune(Machine(lambda _: None), monkeypatch, tmp_path / "fast.toml") == 2
    said = capsys.readouterr().err
    assert "played nothing: try it alone" in said and said.count("\n") == 1


def test_what_explain_says_is_tried_first_unless_it_changes_what_is_learnt() -> None:
    first = {
        name: next(iter(tune_speed.moves(run_figures.read(RECORDINGS / name), 64)))
        for name in ("slow-environment", "acting", "learner")
    }
    assert first["slow-environment"] == ("actor.stepping=threads", "actor.groups=16")
    assert first["acting"][0] == "unroll.envs=16"
    assert not any("model" in one for one in first["learner"])
