"""What processes say: one line per event, whatever happens to it."""

import datetime
import json
import logging
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.actors.crash_budget import CrashBudget
from headrace.actors.stepping.stepper import EnvFailure
from headrace.launch import cli
from headrace.launch.config import run_file
from headrace.launch.process import log_lines, logs
from headrace.launch.process.log_lines import Identity

IDENTITY = Identity("actor", "pong", "00000000000000ff", "node7-3")
# Whatever a str can hold: control characters, line separators, halves of characters.
AWKWARD = st.sampled_from("\n\r\0\x1b\x85\u2028\ud800\udc80\U0001f40e")
WILD = st.lists(st.characters() | AWKWARD).map("".join)

Says = Callable[..., list[str]]


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[logging.Logger, Path]]:
    """A logger that goes to a JSON file, and no further."""
    said = tmp_path / "said"
    with said.open("w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        logger = logging.Logger("test.logs")
        logger.addHandler(logs.ToStderr(IDENTITY, json=True))
        yield logger, said


def lines(said: Path | str) -> list[dict[str, Any]]:
    """Every physical line is one object."""
    text = said.read_text() if isinstance(said, Path) else said
    return [json.loads(line) for line in text.splitlines()]


def record(text: object, *args: object, **extra: Any) -> logging.LogRecord:
    made = logging.LogRecord("test.logs", logging.ERROR, "some.py", 7, text, args, None)
    made.__dict__.update(extra)
    return made


# ---- a line --------------------------------------------------------------------------------------


def test_the_journal_is_told_the_priority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = tmp_path / "said"
    with said.open("w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        stat = os.fstat(stream.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{stat.st_dev}:{stat.st_ino}")
        logger = logging.Logger("test.logs")
        logger.addHandler(logs.ToStderr(IDENTITY, json=True))
        logger.info("fine")
        logger.warning("odd")
        monkeypatch.setenv("JOURNAL_STREAM", "1:2")  # somebody else's, inherited
        logger.handlers = [logs.ToStderr(IDENTITY, json=True)]
        logger.error("wrong")
    assert [line[:4] for line in said.read_text().splitlines()] == ["<6>{", "<4>{", '{"t"']


def test_a_json_line(log: tuple[logging.Logger, Path]) -> None:
    logger, said = log
    logger.warning("credit %d of %s", 3, "é")
    (line,) = lines(said)
    at = datetime.datetime.fromisoformat(line.pop("t"))
    assert abs((datetime.datetime.now(datetime.UTC) - at).total_seconds()) < 60
    assert line == {
        "level": "warning",
        "role": "actor",
        "run": "pong",
        "inc": "00000000000000ff",
        "name": "node7-3",
        "logger": "test.logs",
        "text": "credit 3 of é",
    }


def test_a_human_line_is_as_it_always_was() -> None:
    made = record("out of %s", "luck")
    before = logging.Formatter("%(asctime)s actor %(levelname)s %(message)s", "%H:%M:%S")
    assert log_lines.for_people(made, IDENTITY) == before.format(made)
    try:
        raise ValueError("no arm")
    except ValueError:
        made.exc_info = sys.exc_info()
    assert log_lines.for_people(made, IDENTITY) == before.format(made)


@pytest.mark.slow
@given(WILD, WILD, WILD)
def test_one_event_is_one_line_whatever_is_in_it(text: str, error: str, name: str) -> None:
    made = record("%s", text, traceback=error)
    line = log_lines.for_machines(made, Identity("actor", name, "", name))
    assert line.isascii() and line.isprintable()
    found = json.loads(line)
    assert all(isinstance(value, str) for value in found.values())
    assert json.loads(json.dumps(found, ensure_ascii=False).encode()) == found  # no half characters
    if text.isprintable():
        assert found["text"] == text
    assert ("error" in found) == bool(error.rstrip("\n"))


@pytest.mark.slow
@given(WILD.filter(bool), st.integers(1, 60_000))
def test_a_line_is_never_too_long_for_a_collector(text: str, times: int) -> None:
    text = (text * times)[:60_000]
    name = text[:500]
    made = record("%s", text, traceback=f"first {text} last")
    made.name = name
    line = log_lines.for_machines(made, Identity("evaluator", name, "f" * 16, name))
    assert len(line) <= log_lines.MOST_BYTES
    error = json.loads(line)["error"]
    assert error.startswith("first ") and error.endswith(" last")


def test_arguments_that_do_not_fit_are_a_line_that_says_where() -> None:
    class Broken:
        def __str__(self) -> str:
            raise RuntimeError("no words")

    for made in (record("%d", "x"), record("%s", Broken()), record(Broken()), record("%s %s", 1)):
        line = json.loads(log_lines.for_machines(made, IDENTITY))
        assert "some.py:7" in line["text"]
        assert "some.py:7" in log_lines.for_people(made, IDENTITY)


def test_an_environments_failure_is_one_event(
    log: tuple[logging.Logger, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    logger, said = log
    monkeypatch.setattr("headrace.actors.crash_budget.log", logger)
    text = 'Traceback (most recent call last):\n  File "arm.py", line 3\nValueError: no arm\n'
    budget = CrashBudget("Arm-v0", per_hour=9)
    for env in (3, 17):
        budget.spend(EnvFailure(env, "step", 40 + env, 240, text))
    first, again = lines(said)
    assert first["text"] == (
        "Arm-v0 failed and is restarted: step, environment 3, seed 43, after 240 steps:"
        " ValueError: no arm"
    )
    assert first["error"] == text.rstrip()
    assert again["text"] == first["text"].replace(" 3,", " 17,").replace("43", "57")
    assert "error" not in again
    made = record("Arm-v0 failed", traceback=text)
    assert log_lines.for_people(made, IDENTITY).endswith(f"Arm-v0 failed\n{text.rstrip()}")


# ---- a process -----------------------------------------------------------------------------------

PRELUDE = """
import asyncio, gc, logging, os, resource, sys, threading, time, warnings
from headrace.launch.process import logs
log = logging.getLogger("it")
"""


def python(script: str, *, shell: str = "", **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs the script; `shell` is what a shell would do with its standard error."""
    command = ["sh", "-c", f'exec "$@" {shell}', "-", sys.executable, "-c"]
    return subprocess.run(
        [*command, PRELUDE + textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **options,
    )


@pytest.mark.processes
def test_what_python_would_print_is_a_line_too_and_statuses_stay() -> None:
    done = python(
        """
        logs.start("learner", form="json")
        logs.set_identity(run="pong", inc=255, name="learner-0")
        warnings.warn("old\\nway")
        def die(): raise KeyError("in a thread")
        thread = threading.Thread(target=die, name="feed")
        thread.start(); thread.join()
        threading.Thread(target=sys.exit).start()
        class Undone:
            def __del__(self): raise OSError("in a destructor")
        Undone()
        async def fail(): raise ValueError("in a task")
        async def main():
            # Nobody asks how it ended.
            task = asyncio.get_running_loop().create_task(fail())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            del task
            gc.collect()
        asyncio.run(main())
        try:
            raise ValueError("one\\ntwo")
        except ValueError as error:
            raise ExceptionGroup("several", [error]) from error
        """
    )
    assert done.returncode == 1
    found = lines(done.stderr)
    assert [(line["level"], line["text"].split("\n")[0]) for line in found] == [
        ("warning", "<string>:8: UserWarning: old"),
        ("critical", "feed died of KeyError: 'in a thread'"),
        ("error", "ignored in Undone.__del__: OSError: in a destructor"),
        ("error", "Task exception was never retrieved"),
        ("critical", "uncaught ExceptionGroup: several (1 sub-exception)"),
    ]
    ends = ["KeyError: 'in a thread'", "OSError: in a destructor", "ValueError: in a task"]
    assert [line["error"].splitlines()[-1] for line in found[1:4]] == ends
    assert "two" in found[4]["error"]
    assert {line["inc"] for line in found} == {"00000000000000ff"}


@pytest.mark.processes
@pytest.mark.parametrize(
    ("end", "status"), [("raise KeyboardInterrupt", -2), ("sys.exit(3)", 3), ("1/0", 1)]
)
def test_exit_statuses(end: str, status: int) -> None:
    for form in logs.JSON, logs.HUMAN:
        done = python(f'logs.start("learner", form="{form}")\nlog.info("here")\n{end}')
        assert done.returncode == status
        assert len(done.stderr.splitlines()) == (2 if status != 3 else 1) or form == logs.HUMAN


@pytest.mark.processes
@pytest.mark.parametrize("form", [logs.HUMAN, logs.JSON])
def test_a_full_disk_ends_nobody(form: str) -> None:
    done = python(
        f"""
        logs.start("actor", form="{form}")
        for _ in range(3):
            log.error("not written", stack_info=True)
        handler, = logging.getLogger().handlers
        print(handler.lost)
        """,
        shell="2>/dev/full",
    )
    assert (done.returncode, done.stdout) == (0, "3\n")


@pytest.mark.processes
def test_a_reader_that_has_gone_ends_nobody() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        script = 'logs.start("actor", form="json")\nlog.error("not written")\nprint("here")'
        done = subprocess.run(
            [sys.executable, "-c", PRELUDE + script],
            stdout=subprocess.PIPE,
            stderr=writer,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stdout) == (0, "here\n")


@pytest.mark.processes
def test_a_closed_standard_error_ends_nobody_and_spoils_no_file(tmp_path: Path) -> None:
    done = python(
        f"""
        logs.start("actor", form="json")
        journal = open({str(tmp_path / "journal")!r}, "w")
        log.error("said to nobody")
        os.write(2, b"what a C library says")
        print(journal.fileno() > 2)
        1/0
        """,
        shell="2>&-",
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "True\n", "")
    assert (tmp_path / "journal").read_text() == ""


@pytest.mark.processes
def test_what_was_not_written_is_told_and_a_broken_line_breaks_no_other(tmp_path: Path) -> None:
    said = tmp_path / "said"
    done = python(
        """
        logs.start("actor", form="json")
        log.warning("whole")
        size = os.fstat(2).st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 30, resource.RLIM_INFINITY))
        log.warning("cut off")
        log.warning("not written")
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        log.warning("whole again")
        log.warning("and on")
        """,
        shell=f"2>{said}",
    )
    assert done.returncode == 0
    first, cut, *others = said.read_text().splitlines()
    assert len(cut) == 30
    assert [json.loads(line)["text"] for line in (first, *others)] == [
        "whole",
        "2 lines of this log could not be written: [Errno 27] File too large",
        "whole again",
        "and on",
    ]


# ---- which form ----------------------------------------------------------------------------------


def test_the_form_is_the_options_then_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(logs.VARIABLE)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert [logs.chosen(given) for given in (None, "auto", "json")] == ["human", "human", "json"]
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    assert [logs.chosen(given) for given in (None, "auto", "human")] == ["json", "json", "human"]
    monkeypatch.setenv(logs.VARIABLE, "human")
    assert [logs.chosen(given) for given in (None, "auto", "json")] == ["human", "json", "json"]
    monkeypatch.setenv(logs.VARIABLE, "xml")
    with pytest.raises(
        run_file.ConfigError, match="HEADRACE_LOG=xml: it must be one of auto, human"
    ):
        logs.chosen(None)


@pytest.mark.parametrize(
    "words",
    [
        ["broker", "--run", "cartpole"],
        ["learner", "--run", "cartpole"],
        ["actor", "--broker", "ipc:///b"],
        ["evaluate", "--broker", "ipc:///b"],
    ],
    ids=lambda words: words[0],
)
def test_every_role_has_the_option(words: list[str]) -> None:
    assert cli.parser().parse_args(words).log is None
    assert cli.parser().parse_args([*words, "--log", "json"]).log == "json"


@pytest.mark.processes
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["headrace.launch.cli", "broker", "--run", "nosuch"], "nosuch"),
        (["headrace.launch.learner", "nosuch", "--log", "json"], "nosuch"),
    ],
    ids=["broker", "by torchrun"],
)
def test_what_is_wrong_with_the_input_is_a_line_of_that_form(words: list[str], said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, logs.VARIABLE: "json"},
    )
    (line,) = lines(done.stderr)
    assert (done.returncode, line["level"]) == (2, "error")
    assert said in line["text"]


@pytest.mark.processes
def test_training_speaks_to_people(tmp_path: Path) -> None:
    (tmp_path / "out" / "checkpoints" / "000000000001").mkdir(parents=True)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "headrace.launch.cli",
            "train",
            "cartpole",
            "--out",
            str(tmp_path / "out"),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, logs.VARIABLE: "json"},
    )
    assert done.returncode == 2
    assert done.stderr.startswith("headrace: ") and "holds a run already" in done.stderr
