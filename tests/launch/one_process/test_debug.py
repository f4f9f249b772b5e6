"""`headrace train --debug`: what it keeps, what it raises, and what it refuses."""

import bdb
import re
import sys
import threading
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from headrace.launch import cli
from headrace.launch.config import starts
from headrace.launch.one_process import debug
from headrace.launch.process import logs
from headrace.launch.results import learning_curve, loaded_run

PAGE = Path("docs/algorithms.md").read_text(encoding="utf-8")
SETS = ("unroll.length=8", "unroll.envs=2", "stop.return=none", "stop.steps=200")


class Sick(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Raises at its 40th step, in whatever thread that is."""

    error: BaseException | None = None
    steps = 0

    def step(self, action: Any) -> Any:
        Sick.steps += 1
        assert threading.current_thread() is threading.main_thread()
        if Sick.steps == 40 and Sick.error is not None:
            raise Sick.error
        return self.env.step(action)


def sick() -> gymnasium.Env[Any, Any]:
    return Sick(gymnasium.make("CartPole-v1"))


@pytest.fixture(autouse=True)
def well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "start", lambda *_, **__: None)  # the tests' own log stays
    monkeypatch.setattr(Sick, "error", None)
    monkeypatch.setattr(Sick, "steps", 0)


def train(out: Path, *sets: str) -> int:
    start = starts.begin("cartpole", (*SETS, f"env.id={__name__}:sick", *sets), out, resume=False)
    return debug.debug(start, record=False, evaluate=False)


def test_a_run_in_one_thread_can_be_played_afterwards(tmp_path: Path) -> None:
    threads = threading.active_count()
    assert train(tmp_path / "out") == 0
    assert Sick.steps >= 200
    assert threading.active_count() == threads
    assert loaded_run.load(tmp_path / "out").version > 0
    assert learning_curve.read(tmp_path / "out" / "history.jsonl")
    assert (tmp_path / "out" / "learner.json").exists()


def test_what_an_environment_raises_comes_out_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sick, "error", ZeroDivisionError("mine"))
    with pytest.raises(ZeroDivisionError, match="mine") as raised:
        train(tmp_path)
    assert raised.traceback[-1].name == "step"  # a debugger stops in the user's own frame
    assert Sick.steps == 40


THEIRS = """
import gymnasium
import torch

def loss(given):
    raise ZeroDivisionError("mine")

def schedule(steps):
    raise ZeroDivisionError("mine")

def env():
    raise ZeroDivisionError("mine")

class Eyes(torch.nn.Module):
    units = 8

    def __init__(self, leaves, rng, only_when_it_acts=False):
        super().__init__()
        self.full, self.acts = torch.nn.Linear(4, 8), only_when_it_acts

    def forward(self, obs):
        rows = obs["obs"]
        if not self.acts or rows.any():
            raise ZeroDivisionError("mine")
        return self.full(rows)
"""


@pytest.mark.parametrize(
    ("sets", "function"),
    [
        (("algorithm.loss=theirs:loss",), "loss"),
        (("learner.lr=theirs:schedule",), "schedule"),
        (("env.id=theirs:env",), "env"),
        (("model.kind=theirs:Eyes",), "forward"),
        (("model.kind=theirs:Eyes", "model.kwargs.only_when_it_acts=true"), "forward"),
    ],
)
def test_a_debugger_stops_where_their_own_code_raised(
    sets: tuple[str, ...], function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a run says of it otherwise, in one line, was raised elsewhere."""
    (tmp_path / "theirs.py").write_text(THEIRS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "theirs", raising=False)
    with pytest.raises(ZeroDivisionError, match="mine") as raised:
        train(tmp_path / "out", "model.obs_scale=[]", *sets)
    assert raised.traceback[-1].name == function


@pytest.mark.parametrize("kind", [bdb.BdbQuit, KeyboardInterrupt])
def test_who_leaves_the_debugger_sees_no_traceback(
    kind: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(Sick, "error", kind())
    assert train(tmp_path) == 3
    assert "left before the end" in caplog.text and "Traceback" not in caplog.text


def test_the_loss_of_the_page_trains_and_its_figure_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code,) = re.findall(r"This is `mine\.py`[^`]*```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "mine.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("headrace.learner.train._SHOW_EVERY_S", 0.0)
    out = tmp_path / "out"
    assert train(out, "algorithm.name=appo", "algorithm.loss=mine:with_entropy") == 0
    assert any("missing_entropy" in line for line in learning_curve.read(out / "history.jsonl"))


def test_the_exploration_of_the_page_is_what_the_run_plays_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code,) = re.findall(r"Here is `dice\.py`[^`]*```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "dice.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    assert train(tmp_path / "out", "actor.explore=dice:a_tenth_at_random") == 0
    assert "dice" in sys.modules


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--resume",), "leave out --resume"),
        (("--record",), "leave out --record"),
        (("--evaluate",), "leave out --evaluate"),
        (("--set", "stop.metric=evaluation"), "plays no evaluations"),
        (("--set", "env.id=envpool:Pong-v5"), "where no breakpoint works"),
        (("--set", "algorithm.loss=nowhere:loss"), "No module named 'nowhere'"),
        (("--set", "model.kind=conv"), 'model.kind = "conv"'),
    ],
)
def test_what_it_cannot_do_is_one_line(
    words: tuple[str, ...], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ("--out", str(tmp_path / "out"))
    assert cli.main(["train", "cartpole", "--debug", *out, *words]) == 2
    said = capsys.readouterr().err
    assert complaint in said and said.count("\n") == 1
