"""Tests what a sweep starts, resumes and leaves alone, and what it refuses at once."""

import itertools
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from headrace.launch.cli import main
from headrace.launch.comparison import sweep, training
from headrace.launch.config import run_file
from headrace.launch.process import logs

LIMITS = ("--set", "stop.return=none", "--set", "stop.steps=100")


class Fake:
    """In the place of subprocess: a run ends when it is looked at, complete unless it is sick."""

    DEVNULL, TimeoutExpired = subprocess.DEVNULL, subprocess.TimeoutExpired

    def __init__(self, *, sick: str = "") -> None:
        self.sick, self.started, self.most, self.now = sick, [], 0, 0  # type: ignore[var-annotated]

    def Popen(self, words: list[str], **_: Any) -> Any:  # noqa: N802 - as subprocess has it
        out = Path(words[words.index("--out") + 1])
        self.started.append((out.name, "--resume" in words))
        self.now += 1
        self.most = max(self.most, self.now)
        sets = [word for before, word in itertools.pairwise(words) if before == "--set"]
        return FakeProcess(self, out, sets)


class FakeProcess:
    def __init__(self, fake: Fake, out: Path, sets: list[str]) -> None:
        self._fake, self._out, self._sets, self.ended = fake, out, sets, False

    def poll(self) -> int:
        if not self.ended:
            self._fake.now -= 1
            if self._out.name != self._fake.sick:
                complete(self._out, self._sets)
        self.ended = True
        return 0

    def terminate(self) -> None:
        self.poll()

    def wait(self, _: float) -> int:
        return 0


def complete(out: Path, sets: list[str]) -> None:
    """A run's folder, as `headrace train` leaves it at its limit of steps."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "run.toml").write_text(run_file.effective(run_file.load("cartpole", sets)))
    report = {"stop_reason": "steps", "trained_steps": 100, "mean_return": 9.0, "seconds": 1.0}
    (out / "learner.json").write_text(json.dumps(report))
    (out / "history.jsonl").write_text('{"t": 1, "trained_steps": 100, "mean_return": 9.0}\n')


@pytest.fixture(autouse=True)
def own_log_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "start", lambda *_, **__: None)
    monkeypatch.setattr(sweep, "_LOOK_EVERY_S", 0.0)


def run(out: Path, *words: str) -> int:
    return main(["sweep", "cartpole", "--seeds", "1..2", "--out", str(out), *LIMITS, *words])


def test_it_starts_all_so_many_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake()
    monkeypatch.setattr(training, "subprocess", fake)
    assert run(tmp_path, "--set", "algorithm.gamma=0.9,0.99", "--parallel", "3") == 0
    assert len(fake.started) == 4 and fake.most == 3
    assert all("gamma=0.9" in name and not resumed for name, resumed in fake.started)
    assert (tmp_path / "compared.html").is_file() and (tmp_path / "compared.csv").is_file()


def test_it_goes_on_with_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake()
    monkeypatch.setattr(training, "subprocess", fake)
    assert run(tmp_path) == 0
    names = [name for name, _ in fake.started]
    (tmp_path / names[0] / "learner.json").unlink()
    (tmp_path / names[0] / "checkpoints" / "1").mkdir(parents=True)
    fake.started.clear()
    assert run(tmp_path) == 0
    assert fake.started == [(names[0], True)]


def test_one_that_fails_ends_no_other_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    sick = "seed=1"
    fake = Fake(sick=sick)
    monkeypatch.setattr(training, "subprocess", fake)
    assert run(tmp_path, "--parallel", "1") == 1
    assert len(fake.started) == 2
    assert f"{sick} failed; see {tmp_path}/{sick}.log" in caplog.text


def test_a_folder_of_other_runs_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = Fake()
    monkeypatch.setattr(training, "subprocess", fake)
    assert run(tmp_path) == 0
    fake.started.clear()
    assert run(tmp_path, "--set", "algorithm.gamma=0.5") == 2
    said = capsys.readouterr().err
    assert "holds another run: algorithm.gamma is 0.99 there, and 0.5 here" in said
    assert not fake.started


def test_a_run_without_an_episode_leaves_the_others_their_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(training, "subprocess", Fake())
    assert run(tmp_path) == 0
    (tmp_path / "compared.csv").unlink()
    (tmp_path / "seed=1" / "history.jsonl").write_text("")
    assert run(tmp_path) == 0
    assert "not compared: " in caplog.text
    assert (tmp_path / "compared.csv").is_file()


def test_a_request_to_stop_ends_what_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    fake = Fake()
    monkeypatch.setattr(training, "subprocess", fake)
    monkeypatch.setattr("headrace.launch.process.runtime.StopRequested", lambda: True)
    assert run(tmp_path) == 3
    assert not fake.started
    assert "the same command goes on with what is left" in caplog.text


def test_a_list_is_split_at_its_own_commas() -> None:
    assert sweep.split("1e-3, 3e-3") == ["1e-3", "3e-3"]
    assert sweep.split("[1, 2],[3]") == ["[1, 2]", "[3]"]
    assert sweep.split("'a,b',{ x = 1, y = 2 }") == ["'a,b'", "{ x = 1, y = 2 }"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--seeds", "5..1"), "--seeds 5..1: from a smaller to a larger"),
        (("--seeds", "1..x"), "it is FIRST..LAST, or SEED,SEED"),
        (("--seeds", ""), "it is FIRST..LAST, or SEED,SEED"),
        (("--set", "algorithm.gamma=0.9,"), "it is SECTION.KEY=VALUE,VALUE"),
        (("--set", "algorithm.gama=0.9,0.8"), "gama"),
        (("--set", "algorithm.gamma=0.9,7"), "algorithm.gamma"),
        (("--set", "env.id=CartPole-v1,Acrobot-v1"), "runs of different environments"),
        (("--set", "env.kwargs.a='a b','a+b'"), "two runs would have this name"),
        (("--parallel", "0"), "0 is not between 1 and 1024"),
    ],
)
def test_what_it_cannot_run_is_one_line_before_anything_starts(
    words: tuple[str, ...],
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fake = Fake()
    monkeypatch.setattr(training, "subprocess", fake)
    try:
        status = run(tmp_path, *words)
    except SystemExit as ended:  # of the parser
        status = int(ended.code or 0)
    said = capsys.readouterr().err
    assert status == 2 and complaint in said and said.count("\n") == 1
    assert not fake.started
