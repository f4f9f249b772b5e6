"""The processes of `headrace train`: forked after torch is imported once, watched, started again.

The first children are forks of this process, so they share its imported pages and start at once. This
process gets threads later (the live view), and a fork of a threaded process is not safe: whatever dies
is started again as a fresh interpreter.
"""

import gc
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from launch import process

log = logging.getLogger(__name__)

# A child that dies this often within the window is not going to live; say so and stop.
_MOST_RESTARTS, _WINDOW_S = 5, 60.0


@dataclass(slots=True)
class Child:
    """One role's process."""

    name: str
    again: Sequence[str]  # arguments of `headrace` that start it anew
    pid: int
    status: int | None = None  # exit status, once it has ended; negative = killed by that signal
    deaths: list[float] = field(default_factory=list)


class GaveUpError(Exception):
    """A child cannot be kept alive."""


class Children:
    """Owns every child process."""

    def __init__(self) -> None:
        self.all: list[Child] = []

    def fork(self, name: str, role: Callable[[], int], again: Sequence[str]) -> Child:
        """A child that runs `role` and exits with what it returns."""
        sys.stdout.flush()
        sys.stderr.flush()
        gc.freeze()  # shared pages stay shared: the collector must not write into them
        pid = os.fork()
        if pid == 0:
            _become(name, role)
        child = Child(name, again, pid)
        self.all.append(child)
        return child

    def reap(self) -> list[Child]:
        """Children that have ended since the last call."""
        ended = []
        for child in self.all:
            if child.status is None:
                pid, status = os.waitpid(child.pid, os.WNOHANG)
                if pid:
                    child.status = os.waitstatus_to_exitcode(status)
                    ended.append(child)
        return ended

    def restart(self, child: Child) -> None:
        """A fresh process in its place, unless it dies too often."""
        now = time.monotonic()
        child.deaths = [at for at in child.deaths if now - at < _WINDOW_S] + [now]
        if len(child.deaths) > _MOST_RESTARTS:
            raise GaveUpError(
                f"{child.name} ended {len(child.deaths)} times within {_WINDOW_S:.0f} s"
                f" (last: {_words(child.status)}); see its lines above"
            )
        log.warning("%s %s; starting it again", child.name, _words(child.status))
        child.pid = subprocess.Popen(
            [sys.executable, "-m", "launch.cli", *child.again], preexec_fn=_in_child
        ).pid
        child.status = None

    def stop(self, children: Sequence[Child], *, timeout_s: float) -> None:
        """SIGTERM, and SIGKILL for who does not end in time."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for child in children:
                if child.status is None:
                    os.kill(child.pid, number)
            self.wait(children, timeout_s=timeout_s)

    def wait(self, children: Sequence[Child], *, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while any(child.status is None for child in children) and time.monotonic() < deadline:
            if not self.reap():
                time.sleep(0.01)

    def alive(self) -> list[int]:
        return [child.pid for child in self.all if child.status is None]


def _become(name: str, role: Callable[[], int]) -> None:
    """The child's whole life."""
    status = process.OUR_FAULT
    try:
        _in_child()
        process.start_logging(name, quiet=logging.getLogger().level >= logging.WARNING)
        status = role()
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else process.OUR_FAULT
    except BaseException:  # noqa: BLE001  # nothing may unwind into the parent's code
        log.exception("%s failed", name)
    finally:
        sys.stderr.flush()
        os._exit(status)


def _in_child() -> None:
    """ctrl-C goes to the whole terminal; the parent alone decides who ends when."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    process.die_with_parent()


def _words(status: int | None) -> str:
    if status is not None and status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"ended with status {status}"
