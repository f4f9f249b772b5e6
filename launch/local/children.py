"""The processes of `headrace train`: forked after torch is imported once, watched, started again.

The first children are forks, so they share imported pages and start at once. Those that need
torch are forked by a process in between that imports it; this process adopts them and stays small.
It gets threads later (the live view), and a fork of a threaded process is not safe: whatever dies
is started again as a fresh interpreter.
"""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.launch.process import forking, logs, runtime

log = logging.getLogger(__name__)

# A child that dies more often within the window is not going to live: the run gives up.
_MOST_RESTARTS, _WINDOW_S = 5, 60.0


@dataclass(slots=True)
class Child:
    """Holds one role's process."""

    name: str
    again: Sequence[str]  # arguments of `headrace` that start it again
    pid: int
    status: int | None = None  # exit status, once it has ended; negative = killed by that signal
    deaths: list[float] = field(default_factory=list)
    # Set when it was started again, and kept: once it is dropped Python waits for the process by
    # itself, and the exit status is lost.
    popen: subprocess.Popen[bytes] | None = None


class Plan(NamedTuple):
    """Holds what starts a child."""

    name: str
    role: Callable[[], int]
    again: Sequence[str]


class GaveUpError(Exception):
    """Says that a child cannot be kept alive."""


class Children:
    """Owns every child process."""

    def __init__(self) -> None:
        self.all: list[Child] = []
        self._unseen: list[Child] = []  # ended while others were waited for; the next reap tells

    def fork(self, name: str, role: Callable[[], int], again: Sequence[str]) -> Child:
        """Forks a child that runs `role` and exits with what it returns."""
        child = Child(name, again, forking.fork(_work(name, role)))
        self.all.append(child)
        return child

    def fork_together(self, plans: Sequence[Plan], prepare: Callable[[], object]) -> list[Child]:
        """Forks children that share what `prepare` imports, and this process does not."""
        if not runtime.adopt_orphans():  # not on Linux: our own pages will have to do
            prepare()
            return [self.fork(*plan) for plan in plans]
        works = [_work(plan.name, plan.role) for plan in plans]
        try:
            pids = forking.fork_for(os.getpid(), works, prepare=prepare)
        except ChildProcessError as error:
            raise GaveUpError(f"the processes could not be started: {error}") from error
        started = [Child(p.name, p.again, pid) for p, pid in zip(plans, pids, strict=True)]
        self.all += started
        return started

    def reap(self) -> list[Child]:
        """Returns the children that have ended since the last call, also while others were waited
        for."""
        ended, self._unseen = self._unseen + self._look(), []
        return ended

    def _look(self) -> list[Child]:
        ended = []
        for child in self.all:
            if child.status is None:
                child.status = _status(child)
                if child.status is not None:
                    ended.append(child)
        return ended

    def start(self, name: str, arguments: Sequence[str]) -> Child:
        """Starts a child in a fresh process."""
        child = Child(name, arguments, pid=0)
        self._spawn(child)
        self.all.append(child)
        return child

    def restart(self, child: Child) -> None:
        """Starts a fresh process in its place, unless it dies too often."""
        now = time.monotonic()
        child.deaths = [at for at in child.deaths if now - at < _WINDOW_S] + [now]
        if len(child.deaths) > _MOST_RESTARTS:
            raise GaveUpError(
                f"{child.name} ended {len(child.deaths)} times within {_WINDOW_S:.0f} s"
                f" (last: {forking.exit_words(child.status)}); see its lines above"
            )
        log.warning("%s %s; starting it again", child.name, forking.exit_words(child.status))
        self._spawn(child)

    def _spawn(self, child: Child) -> None:
        parent = os.getpid()
        child.popen = subprocess.Popen(
            [sys.executable, "-m", "headrace.launch.cli", *_log_level_option(), *child.again],
            preexec_fn=lambda: forking.become_child(parent),
            env={**os.environ, logs.VARIABLE: logs.form()},
        )
        child.pid, child.status = child.popen.pid, None

    def stop(self, children: Sequence[Child], *, timeout_s: float) -> None:
        """Sends SIGTERM, and SIGKILL to those that do not end in time."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for child in children:
                if child.status is None:
                    os.kill(child.pid, number)
            self.wait(children, timeout_s=timeout_s)

    def wait(self, children: Sequence[Child], *, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while any(child.status is None for child in children) and time.monotonic() < deadline:
            ended = self._look()
            self._unseen += [child for child in ended if child not in children]
            if not ended:
                time.sleep(0.01)

    def alive(self) -> list[int]:
        return [child.pid for child in self.all if child.status is None]


def _work(name: str, role: Callable[[], int]) -> forking.Work:
    def run() -> int:
        runtime.show_as(name)
        logs.start(name, quiet=_quiet(), form=logs.form())
        return role()

    return forking.Work(name, run)


def _status(child: Child) -> int | None:
    """Returns its exit status; None while it runs."""
    return child.popen.poll() if child.popen is not None else forking.exit_status(child.pid)


def _log_level_option() -> list[str]:
    """Returns the option that makes it log as much as the fork did; HEADRACE_LOG sets the form."""
    return ["--log-level", "warning"] if _quiet() else []


def _quiet() -> bool:
    return logging.getLogger().level >= logging.WARNING
