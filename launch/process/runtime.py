"""What every process does alike: signals, memory, exit statuses, files it is asked to write."""

import asyncio
import contextlib
import ctypes
import errno
import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import uvloop

from headrace.launch.process import sd_notify

_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 15, 36
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# To a child that was asked to stop: it shall not wait any longer.
GIVE_UP = signal.SIGUSR2
OK, OUR_FAULT, YOUR_INPUT, LIMIT, DIVERGED = 0, 1, 2, 3, 4
# New objects after which Python looks for cycles among them.
_COLLECT_AFTER = 50_000
_dies_with_parent = False  # this process asked for a signal when its parent dies
_asked_again = False  # to stop: it shall not wait for anything any longer


def started_at() -> float:
    """Returns when this process began, interpreter start included, by `time.monotonic` of this
    machine: the wall clock may be moved while we run."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return time.monotonic()
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - age_s


class StopRequested:
    """Turns true once SIGTERM or SIGINT came.

    Nothing is raised: an exception out of a signal handler may be swallowed by the code that runs
    at that moment (an import, a lock, a destructor), and then nobody would ever know.
    """

    def __init__(self) -> None:
        self._asked = False
        for number in (signal.SIGTERM, signal.SIGINT):
            # A SIGINT that our parent has told us to ignore stays ignored.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self.ask)

    def __bool__(self) -> bool:
        return self._asked

    def ask(self, *_: object) -> None:
        self._asked = True
        sd_notify.stopping()


def die_with_parent(parent: int | None = None, *, by: signal.Signals = signal.SIGTERM) -> None:
    """Asks Linux for a signal when the parent dies, however it died, so that nothing is
    orphaned."""
    global _dies_with_parent
    if sys.platform == "linux":
        _dies_with_parent = True
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, by)
        if parent is not None and os.getppid() != parent:  # it died before we could ask
            os.kill(os.getpid(), by)


def show_as(name: str) -> None:
    """Sets, on Linux, the name that ps and top show for a fork, which else looks like its parent;
    15 bytes."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:15])


def adopt_orphans() -> bool:
    """Makes this process, on Linux, the parent of what its children leave behind; False = not
    possible here."""
    if sys.platform != "linux":
        return False
    failed: int = ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    return not failed


def keep_memory() -> None:
    """Makes glibc keep freed unroll buffers instead of returning them to the kernel and faulting
    them in again, page by page, for the next message. What is kept is bounded by what was held at
    once. `headrace bench broker`, median of six runs each: 7.7k -> 9.5k unrolls of 256 kB a
    second."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, 1 << 30)
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)  # the largest that glibc takes


def collect_rarely() -> None:
    """Makes Python look for garbage in cycles less often: where tens of thousands of unrolls and
    streams are held, none of which is any, looking through them again and again takes a sixth of
    the time. `headrace bench crowd 10000 160 2 4096 2`, two runs each: 9.5k -> 11.1k unrolls a
    second."""
    gc.freeze()  # what was imported stays
    gc.set_threshold(_COLLECT_AFTER)


def cores() -> int:
    """Returns how many cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def incarnation() -> int:
    """Returns 63 random bits: this process start, and no other."""
    return int.from_bytes(os.urandom(8)) >> 1


def run_async(main: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Runs an asyncio role; SIGTERM and SIGINT cancel it, and it ends by unwinding.

    A SIGINT that our parent has told us to ignore stays ignored.
    """
    keep_memory()

    async def guarded() -> int:
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        cancel = _CancelOnSignal(task)
        loop.add_signal_handler(GIVE_UP, cancel.again)
        for number in (signal.SIGTERM, signal.SIGINT):
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, cancel)
        return await main()

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(guarded())
    except asyncio.CancelledError:
        return OK


class _CancelOnSignal:
    """Cancels a role when it is asked to stop, and once more when it is asked again.

    A process with a parent is asked by SIGTERM once, however often that comes: from each dying
    thread of a killed parent, or from Slurm, which signals all processes of a step, and then from
    the parent. Asked again, by its parent alone, it is by GIVE_UP.
    """

    def __init__(self, task: "asyncio.Task[Any]") -> None:
        self._task = task
        self._asked = False

    def __call__(self) -> None:
        if not self._asked:
            self._asked = True
            sd_notify.stopping()
            self._task.cancel()
        elif not _dies_with_parent:
            self.again()

    def again(self) -> None:
        global _asked_again
        _asked_again = True
        self._task.cancel()


def may_wait(seconds: float) -> float:
    """Returns how long a role that was asked to stop may wait: no longer, if it was asked again
    before it came to wait. Two requests that it has not noticed yet cancel it only once."""
    return 0.0 if _asked_again else seconds


def discard(path: Path) -> None:
    """Removes a file that a full disk cut off, if that is possible."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def make_room(path: Path) -> None:
    """Creates the parent folder of a file that will be written; OSError, whose strerror is for a
    user, where that is not possible or `path` is a folder itself."""
    if not path.name or path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a folder; name a file", str(path))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise NotADirectoryError(errno.ENOTDIR, f"{path.parent} is no folder", str(path)) from error
