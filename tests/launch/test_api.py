"""Headrace from Python: settings in, a summary out, from scripts, loops and notebooks."""

import io
import json
import logging
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
from headrace.launch.process import last_errors
from headrace.launch.process.log_lines import Identity

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
if doing == "refuse":
    for role, text in json.loads(os.environ["SAID"]).items():
        Path(os.environ["HEADRACE_REASONS"], role).write_text(text)
    print("12:34:56 actor-0 ERROR somebody else's last words", file=sys.stderr)
    sys.exit(2)
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


@pytest.mark.processes
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


@pytest.mark.processes
def test_what_is_off_is_not_said(fake: Path) -> None:
    headrace.train(out=fake, resume=True, quiet=False)
    words = told(fake)[0]
    assert "--resume" in words
    assert not {"--evaluate", "--no-evaluate", "--record", "--quiet"} & set(words)
    headrace.train(out=fake, evaluate=False)
    assert "--no-evaluate" in told(fake)[0]


@pytest.mark.processes
def test_the_run_can_import_what_we_can(
    fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path / "mine"))
    headrace.train(out=fake)
    assert str(tmp_path / "mine") in told(fake)[1]


@pytest.mark.processes
def test_lines_go_where_python_writes(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook's sys.stderr is no file that a process could be given."""
    notebook = io.StringIO()
    monkeypatch.setattr(sys, "stderr", notebook)
    headrace.train(out=fake, quiet=False)
    assert sorted(notebook.getvalue().splitlines()) == ["a line on stderr", "a line on stdout"]


@pytest.mark.processes
@pytest.mark.parametrize(("status", "kind"), [(2, headrace.ConfigError), (1, RuntimeError)])
def test_an_end_that_is_none_is_raised_with_its_reason(
    fake: Path, monkeypatch: pytest.MonkeyPatch, status: int, kind: type[Exception]
) -> None:
    monkeypatch.setenv("FAKE", f"end{status}")
    with pytest.raises(kind, match=r"(^|: )the reason$"):
        headrace.train(out=fake)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"train": "no room"}, "no room"),
        (
            {
                "train": "learner cannot work so; its line above says why",
                "learner": "no licence",
                "actor-0": "no licence either",
            },
            "no licence",
        ),
        ({"train": "learner cannot work so", "actor-0": "another matter"}, "learner cannot"),
        (
            {"train": "x holds a run: continue it with --resume, or choose another with --out"},
            "x holds a run: continue it with resume=True, or choose another with out=",
        ),
        (
            {"train": "--set learner.lr=1: too much; --set security.curve=true"},
            "learner={'lr': 1}: too much; security={\"curve\": true}",
        ),
    ],
)
@pytest.mark.parametrize("quiet", [True, False])
def test_the_reason_comes_from_who_had_it_in_the_callers_words(
    fake: Path, monkeypatch: pytest.MonkeyPatch, said: Any, expected: str, quiet: bool
) -> None:
    """Also where its lines go to a terminal, and whoever spoke last."""
    monkeypatch.setenv("FAKE", "refuse")
    monkeypatch.setenv("SAID", json.dumps(said))
    if not quiet:
        monkeypatch.setattr(sys, "stderr", sys.__stderr__)
    with pytest.raises(headrace.ConfigError) as caught:
        headrace.train(out=fake, quiet=quiet, learner={"lr": 1})
    assert str(caught.value).startswith(expected)


def test_a_process_keeps_its_last_error_for_who_started_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(last_errors.VARIABLE, str(tmp_path))
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    identity = Identity("learner")
    last_errors.install(identity)
    log = logging.getLogger("headrace.learner.train")
    log.error("first")
    log.warning("no reason")
    log.error("no\nlicence for %s", "this")
    assert (tmp_path / "learner").read_text() == "no licence for this"
    assert last_errors.reason(tmp_path) == "no licence for this"  # nobody else said anything
    identity.role = "train"
    log.error("learner cannot work so")
    assert last_errors.reason(tmp_path) == "no licence for this"
    last_errors.refused(ValueError("/tmp/x holds a run"))
    assert last_errors.reason(tmp_path) == "/tmp/x holds a run"


@pytest.mark.processes
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


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            {"learner": {"lrr": 1}},
            "learner={'lrr': 1}: learner.lrr is no key of [learner]; did you mean lr?",
        ),
        (
            {"stop_retrun": 5},
            "stop_retrun=5: stop.retrun is no key of [stop]; did you mean return?",
        ),
        (
            {"max_lag": 3},
            "max_lag=3: max_lag stands outside every section; did you mean pacing.max_lag?",
        ),
        ({"learner": 3}, "learner=3: learner is a section, give its keys in a dict"),
        (
            {"run": {"seed": -1}},
            "run={'seed': -1}: run.seed is -1; it must be an integer >= 0 and < 2147483648",
        ),
        ({"learner": {"lr": None}}, "learner={'lr': None}: learner.lr is \"none\"; it must be"),
        (
            {"model": {"hidden": [8, "a"]}},
            "model={'hidden': [8, 'a']}: model.hidden is [8, \"a\"];",
        ),
    ],
)
def test_what_is_wrong_is_said_in_terms_of_what_was_typed(
    fake: Path, settings: dict[str, Any], line: str
) -> None:
    with pytest.raises(headrace.ConfigError) as caught:
        headrace.train(out=fake, **settings)
    assert str(caught.value).startswith(line) and "--" not in str(caught.value)


def test_a_configs_settings_are_what_was_typed_too() -> None:
    assert headrace.Config("cartpole", ["run.seed=4"]).run.seed == 4
    with pytest.raises(headrace.ConfigError, match=r"^learner\.lrr=1: learner\.lrr is no key"):
        headrace.Config("cartpole", ["learner.lrr=1"])


@pytest.mark.processes
def test_the_runs_own_section_is_a_setting_like_others(fake: Path) -> None:
    headrace.train("catch", out=fake, run={"seed": 3}, stop_steps=None, stop={"seconds": None})
    words = told(fake)[0]
    sets = {words[at + 1] for at, word in enumerate(words) if word == "--set"}
    assert words[0] == "catch" and sets == {"run.seed=3", "stop.steps=none", "stop.seconds=none"}
    headrace.train(run="catch", out=fake)
    assert told(fake)[0][0] == "catch"


def test_a_policy_that_is_not_there_is_said_in_terms_of_python(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('[run]\nname = "a"\n')
    with pytest.raises(headrace.ConfigError) as caught:
        headrace.load_policy(tmp_path, "best")
    assert 'which="newest"' in str(caught.value) and "--" not in str(caught.value)


@pytest.mark.processes
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


@pytest.mark.processes
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
