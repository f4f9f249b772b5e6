"""Forks processes that share what this one has imported; tells how a process ended.

    fork       this process --> child
    fork_for   this process --> one in between, which ends --> children, which `adopter` adopts

A process in between imports what this one should not, such as torch, or keeps its death from
harming the children. Each child ends with its parent.
"""

import contextlib
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, NoReturn

from headrace.launch.process import runtime

log = logging.getLogger(__name__)


class Work(NamedTuple):
    """Holds what a child runs; its exit status is what `run` returns."""

    name: str
    run: Callable[[], int]


def fork(work: Work, *, adopter: int = 0) -> int:
    """Forks a child; returns its pid. With an adopter the child waits until this process has
    ended."""
    _flush()
    gc.freeze()  # shared pages stay shared: the collector must not write into them
    forker = os.getpid()
    # Between the fork and the child's own answer to a signal it would give ours.
    held = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    try:
        pid = os.fork()
        if pid == 0:
            _run_child(work, forker=forker, adopter=adopter, signals=held)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
    return pid


def fork_for(
    adopter: int, works: Sequence[Work], *, prepare: Callable[[], object] = lambda: None
) -> list[int]:
    """Forks children that `adopter` gets; returns their pids. `prepare` runs before, in the process
    in between. Raises ChildProcessError where not all could be started."""
    read_end, write_end = os.pipe()

    def without_pipe(work: Work) -> Work:
        def run() -> int:
            os.close(read_end)
            os.close(write_end)
            return work.run()

        return Work(work.name, run)

    def between() -> int:
        prepare()
        for work in works:
            pid = fork(without_pipe(work), adopter=adopter)
            os.write(write_end, f"{pid}\n".encode())
        return runtime.OK

    pid = fork(Work("forker", between))
    os.close(write_end)
    with os.fdopen(read_end) as lines:
        pids = [int(line) for line in lines]
    _, status = os.waitpid(pid, 0)
    if len(pids) < len(works):
        raise ChildProcessError(exit_words(os.waitstatus_to_exitcode(status)))
    return pids


def _run_child(
    work: Work, *, forker: int, adopter: int, signals: Iterable[signal.Signals | int]
) -> NoReturn:
    """Runs the child from start to end."""
    status = runtime.OUR_FAULT
    try:
        # PR_SET_PDEATHSIG binds to the current parent, so wait until we are adopted.
        while adopter and os.getppid() == forker:
            time.sleep(0.001)
        become_child(adopter or forker)
        signal.pthread_sigmask(signal.SIG_SETMASK, signals)
        status = work.run()
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else runtime.OUR_FAULT
    except BaseException:  # nothing may unwind into the forker's code
        log.exception("%s failed", work.name)
    finally:
        _flush()
        os._exit(status)


def become_child(parent: int) -> None:
    """Sets a child's signals. Ctrl-C goes to the whole terminal; the parent alone decides who ends
    when."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Not the parent's handler: a child that is asked to end before its role began just ends.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    runtime.die_with_parent(parent)


def exit_status(pid: int) -> int | None:
    """Returns a child's exit status, negative if a signal killed it; None while it runs."""
    gone, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if gone else None


def exit_words(status: int | None) -> str:
    if status is not None and status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"ended with status {status}"


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or none at all
            stream.flush()
