"""Headrace from Python: settings in, a summary out, from scripts, loops and notebooks."""

import io
import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace

STARTED_WITHIN_S = 60.0


# What stands in for `headrace train`: it says what it was told, and then does it.
FAKE = """
import json, os, signal, sys, time
from pathlib import Path
words = sys.argv[1:]
out = Path(words[words.index("--out") + 1])
out.mkdir(parents=True, exist_ok=True)
(out / "words.json").write_text(json.dumps([words, sys.path, sys.stdin.read()]))
doing = os.environ.get("FAKE", "")
print("a line on stdout", flush=True)
print("a line on stderr", file=sys.stderr, flush=True)
if doing == "wait":
    signal.signal(signal.SIGTERM, lambda *_: ((out / "asked").touch(), sys.exit(3)))
    (out / "ready").touch()
    time.sleep(60)
if doing.startswith("end"):
    print("12:34:56 train ERROR the reason", file=sys.stderr)
    sys.exit(int(doing[3:]))
(out / "summary.json").write_text(json.dumps({"stop_reason": "steps"}))
sys.exit(3)
"""


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The folder of runs by a stand-in for the command line."""
    program = tmp_path / "fake.py"
    program.write_text(FAKE)
    started: list[subprocess.Popen[str]] = []
    popen = subprocess.Popen

    def start(command: list[str], **options: Any) -> Any:
        assert command[3:5] == [str(os.getpid()), "train"]
        started.append(popen([sys.executable, str(program), *command[5:]], **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    yield tmp_path / "run"
    assert all(child.returncode is not None for child in started)


def told(folder: Path) -> Any:
    return json.loads((folder / "words.json").read_text())


def test_arguments_become_settings(fake: Path) -> None:
    summary = headrace.train(
        "cartpole",
        out=fake,
        evaluate={"episodes": 5},
        record=True,
        stop_return=475,
        learner={"lr": np.float64(1e-3), "threads": np.int64(2)},
        model={"hidden": [8, 8]},
    )
    assert summary == {"stop_reason": "steps", "folder": str(fake)}
    words, _, stdin = told(fake)
    sets = {words[at + 1] for at, word in enumerate(words) if word == "--set"}
    assert sets == {
        "stop.return=475",
        "learner.lr=0.001",
        "learner.threads=2",
        "model.hidden=[8, 8]",
        "evaluate.episodes=5",
    }
    assert words[0] == "cartpole" and {"--evaluate", "--record", "--quiet"} < set(words)
    assert "--resume" not in words and stdin == ""


def test_what_is_off_is_not_said(fake: Path) -> None:
    headrace.train(out=fake, resume=True, quiet=False)
    words = told(fake)[0]
    assert "--resume" in words
    assert not {"--evaluate", "--record", "--quiet"} & set(words)


def test_the_run_can_import_what_we_can(
    fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path / "mine"))
    headrace.train(out=fake)
    assert str(tmp_path / "mine") in told(fake)[1]


def test_lines_go_where_python_writes(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook's sys.stderr is no file that a process could be given."""
    notebook = io.StringIO()
    monkeypatch.setattr(sys, "stderr", notebook)
    headrace.train(out=fake, quiet=False)
    assert sorted(notebook.getvalue().splitlines()) == ["a line on stderr", "a line on stdout"]


@pytest.mark.parametrize(("status", "kind"), [(2, headrace.ConfigError), (1, RuntimeError)])
def test_an_end_that_is_none_is_raised_with_its_reason(
    fake: Path, monkeypatch: pytest.MonkeyPatch, status: int, kind: type[Exception]
) -> None:
    monkeypatch.setenv("FAKE", f"end{status}")
    with pytest.raises(kind, match=r"(^|: )the reason$"):
        headrace.train(out=fake)


def test_a_run_without_a_summary(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a full disk leaves it."""
    monkeypatch.setenv("FAKE", "end3")
    with pytest.raises(RuntimeError, match=r"has ended, but .* holds no summary"):
        headrace.train(out=fake)


def test_wrong_settings_are_refused_before_anything_starts(fake: Path) -> None:
    with pytest.raises(headrace.ConfigError, match=r"learner\.lrr"):
        headrace.train(out=fake, learner={"lrr": 1})
    with pytest.raises(headrace.ConfigError, match=r"\[nope\] is no section"):
        headrace.train(out=fake, nope={})
    with pytest.raises(headrace.ConfigError, match="no shipped run"):
        headrace.train("cartpoole", out=fake)
    assert not fake.exists()


def test_an_interrupt_stops_the_run_and_is_raised_again(
    fake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a notebook: only we are interrupted."""
    monkeypatch.setenv("FAKE", "wait")
    start = subprocess.Popen

    def interrupted(command: list[str], **options: Any) -> Any:
        child = start(command, **options)
        wait = child.wait

        def waits(timeout: float | None = None) -> int:
            if timeout is None:
                appears(fake / "ready")
                raise KeyboardInterrupt
            return wait(timeout)

        child.wait = waits  # type: ignore[method-assign]
        return child

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        headrace.train(out=fake)
    assert (fake / "asked").exists()
    (note,) = caught.value.__notes__
    assert "resume=True" in note and str(fake) in note


def appears(path: Path) -> None:
    until = time.monotonic() + STARTED_WITHIN_S
    while not path.exists():
        assert time.monotonic() < until, f"{path} never came"
        time.sleep(0.01)


SCRIPT = """
import headrace
summary = headrace.train(
    "cartpole", out={out!r}, actor={{"count": 1}}, stop_return=9999, stop_steps=1024
)
policy = headrace.load_policy(summary["folder"])
print(summary["stop_reason"], policy.act([0.0, 0.0, 0.0, 0.0])[0] in (0, 1))
"""
IN_A_LOOP = """
import asyncio
async def main():
{body}
asyncio.run(main())
"""


@pytest.mark.parametrize("how", ["stdin, in a loop", "-i"])
def test_a_real_run_by_callers_that_are_no_script(tmp_path: Path, how: str) -> None:
    """Neither has a file for __main__; one has a running event loop, as a notebook."""
    script = SCRIPT.format(out=str(tmp_path / "run"))
    looped = IN_A_LOOP.format(body=textwrap.indent(script, "    "))
    done = subprocess.run(
        [sys.executable, *(["-i", "-c", script] if how == "-i" else ["-"])],
        input="" if how == "-i" else looped,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.splitlines() == ["steps True"], done.stderr
