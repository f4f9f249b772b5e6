"""Findings and subjects of the doctor's checks, and the time limits of checks and programs."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from headrace.launch.config import run_file

OK, WARN, BAD = "ok", "warn", "bad"


class Finding(NamedTuple):
    """Holds one line of the doctor's output."""

    level: str
    what: str  # the check's name
    words: str  # what was found, and what to repair


@dataclass(frozen=True, slots=True)
class Subject:
    """Holds what is checked besides the machine itself."""

    run: run_file.Run | None = None
    source: tuple[str, ...] = ()  # what the run was loaded from: its name, then its settings
    broker: str | None = None
    key: Path | None = None


Check: TypeAlias = Callable[[Subject], Iterator[Finding]]


class SlowError(Exception):
    """Signals that a program did not end in time."""


def run_check(check: Check, subject: Subject, seconds: float) -> list[Finding]:
    """Returns a check's findings; a check that hangs or fails becomes a finding, too."""
    name = check.__name__.replace("_", " ")
    found: list[Finding] = []

    def run() -> None:
        try:
            found.extend(check(subject))
        except Exception as error:  # noqa: BLE001  # the other checks must still run
            line = " ".join(str(error).split())
            found.append(Finding(BAD, name, f"cannot be checked: {type(error).__name__}: {line}"))

    # A daemon: a check that hangs must not keep the process alive.
    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        return [*found, Finding(BAD, name, f"no answer within {seconds:g} s")]
    return found


def run_program(*arguments: str, seconds: float) -> tuple[int, str]:
    """Runs a Python program; returns its status and output. Afterwards all its processes are
    killed."""
    child = subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        said, _ = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        raise SlowError(f"no answer within {seconds:g} s") from None
    finally:
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        finally:
            child.wait()
            if child.stdout is not None:
                child.stdout.close()
    return child.returncode, said


def last_line(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


def json_of(said: str) -> dict[str, Any]:
    """Parses the JSON object in a program's last line."""
    facts = json.loads(last_line(said))
    return facts if isinstance(facts, dict) else {}
