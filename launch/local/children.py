"""The processes of `headrace train`: forked after torch is imported once, watched, started again.

The first children are forks, so they share imported pages and start at once. Those that need
torch are forked by a forker, a process that imports it, forks them, and ends; this process adopts
them and stays small. It gets threads later (the live view), and a fork of a threaded process is
not safe: whatever dies is started again as a fresh interpreter.
"""

import gc
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.launch.process import logs, runtime

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
        sys.stdout.flush()
        sys.stderr.flush()
        gc.freeze()  # shared pages stay shared: the collector must not write into them
        parent = os.getpid()
        # Between the fork and the child's own answer to a signal it would give the parent's.
        held = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
        try:
            pid = os.fork()
            if pid == 0:
                _run_child(name, role, parent=parent, signals=held)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
        child = Child(name, again, pid)
        self.all.append(child)
        return child

    def fork_together(self, plans: Sequence[Plan], prepare: Callable[[], object]) -> list[Child]:
        """Forks children that share what `prepare` imports, and this process does not."""
        if not runtime.adopt_orphans():  # not on Linux: our own pages will have to do
            prepare()
            return [self.fork(*plan) for plan in plans]
        read_end, write_end = os.pipe()
        main = os.getpid()
        forker = self.fork(
            "forker", lambda: _run_forker(plans, prepare, main=main, report_to=write_end), ()
        )
        os.close(write_end)
        with os.fdopen(read_end) as lines:
            pids = [int(line) for line in lines]
        self.wait([forker], timeout_s=10.0)
        self.all.remove(forker)
        started = [Child(p.name, p.again, pid) for p, pid in zip(plans, pids, strict=False)]
        self.all += started
        if len(started) < len(plans):
            raise GaveUpError(f"the processes could not be started: {_words(forker.status)}")
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

    def restart(self, child: Child) -> None:
        """Starts a fresh process in its place, unless it dies too often."""
        now = time.monotonic()
        child.deaths = [at for at in child.deaths if now - at < _WINDOW_S] + [now]
        if len(child.deaths) > _MOST_RESTARTS:
            raise GaveUpError(
                f"{child.name} ended {len(child.deaths)} times within {_WINDOW_S:.0f} s"
                f" (last: {_words(child.status)}); see its lines above"
            )
        log.warning("%s %s; starting it again", child.name, _words(child.status))
        parent = os.getpid()
        child.popen = subprocess.Popen(
            [sys.executable, "-m", "headrace.launch.cli", *_log_level_option(), *child.again],
            preexec_fn=lambda: _in_child(parent),
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


def _run_forker(
    plans: Sequence[Plan], prepare: Callable[[], object], *, main: int, report_to: int
) -> int:
    """Runs the forker from start to end; `main` adopts its children when it ends."""
    prepare()
    gc.freeze()
    forker = os.getpid()
    held = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    for plan in plans:
        pid = os.fork()
        if pid == 0:
            os.close(report_to)
            _run_child(plan.name, plan.role, parent=main, signals=held, forker=forker)
        os.write(report_to, f"{pid}\n".encode())
    return runtime.OK


def _run_child(
    name: str,
    role: Callable[[], int],
    *,
    parent: int,
    signals: Iterable[signal.Signals | int],
    forker: int = 0,
) -> None:
    """Runs the child from start to end."""
    status = runtime.OUR_FAULT
    try:
        # PR_SET_PDEATHSIG binds to the current parent, so wait until `main` has adopted us.
        while os.getppid() == forker:
            time.sleep(0.001)
        _in_child(parent)
        signal.pthread_sigmask(signal.SIG_SETMASK, signals)
        logs.start(name, quiet=_quiet(), form=logs.form())
        status = role()
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else runtime.OUR_FAULT
    except BaseException:  # nothing may unwind into the parent's code
        log.exception("%s failed", name)
    finally:
        sys.stderr.flush()
        os._exit(status)


def _status(child: Child) -> int | None:
    """Returns its exit status; None while it runs."""
    if child.popen is not None:
        return child.popen.poll()
    pid, status = os.waitpid(child.pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if pid else None


def _in_child(parent: int) -> None:
    """Sets a child's signals. Ctrl-C goes to the whole terminal; the parent alone decides who ends
    when."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Not the parent's handler: a child that is asked to end before its role began just ends.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    runtime.die_with_parent(parent)


def _log_level_option() -> list[str]:
    """Returns the option that makes it log as much as the fork did; HEADRACE_LOG sets the form."""
    return ["--log-level", "warning"] if _quiet() else []


def _quiet() -> bool:
    return logging.getLogger().level >= logging.WARNING


def _words(status: int | None) -> str:
    if status is not None and status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"ended with status {status}"
