"""Steps groups in processes of their own: for simulators that compute in Python, crash, or hang.

A host process imports what they need and forks workers, which share its pages. Observations and
actions lie in shared memory. A group is sent by raising its count there and waking its worker; the
worker raises the other count and wakes the sampler, once for all that are done by then.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable

import numpy as np

from headrace.actors.action_converter import Rows
from headrace.actors.envs.convert import EnvError
from headrace.actors.stepping.processes.host_connection import (
    HostConnection,
    check_descriptors,
    exit_words,
)
from headrace.actors.stepping.processes.shared_frame import (
    Died,
    Failed,
    Fork,
    Kill,
    NeverWorked,
    SharedFrame,
    Task,
    reports,
)
from headrace.actors.stepping.stepper import EnvFailure, EnvsSpec, ThreadReply

_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0


class ProcessStepper:
    """Steps groups in worker processes; this is the sampler's side."""

    def __init__(self, made: EnvsSpec, *, workers: int = 0, timeout_s: float = 60.0) -> None:
        self.spaces = made.spaces
        self._together = made.together
        apart = made.groups // made.together
        self._workers = self.beside = workers = min(workers, apart) or apart
        check_descriptors(workers)
        memory = os.memfd_create("stepping")
        self._shared = SharedFrame(memory, made, workers=workers)
        self.frame = self._shared.frame
        self._wakes = tuple(os.eventfd(0, os.EFD_CLOEXEC) for _ in range(workers))
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._fds = (memory, self._bell, *self._wakes)
        self._task = Task(
            made, workers, memory, self._bell, self._wakes, os.environ.get("PYTHONPATH")
        )
        self._timeout_s = timeout_s
        self._seen = np.zeros(apart, np.int64)  # by what is stepped: steps that ready() has named
        self._failures: list[EnvFailure] = []
        self._wrong: EnvError | None = None  # for ready() to raise
        self._hung: set[int] = set()  # workers that are being killed
        # By worker: how many steps its groups had done when it was started, and how long to wait
        # before it is started again if they have not done one more by then.
        self._base = [0] * workers
        self._pauses = [0.0] * workers
        self._host_pause = 0.0
        self._host: HostConnection | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news = asyncio.Event()  # the caller's, from start() on
        self._timers: set[asyncio.TimerHandle] = set()

    def start(self, news: asyncio.Event, _reply: ThreadReply | None = None) -> None:
        self._news, self._loop = news, asyncio.get_running_loop()
        self._loop.add_reader(self._bell, self._rung)
        for group in range(len(self._seen)):
            self._shared.sent[group] = 1  # to begin is the first step
        self._start_host()
        self._watch()

    def send(self, group: int, actions: Rows) -> None:
        shared, frame = self._shared, self.frame
        frame.action[frame.columns(group)] = actions
        group //= self._together
        worker = group % self._workers
        if not shared.busy[worker] and shared.beat[worker]:
            shared.alive(worker)
        shared.sent[group] += 1
        os.eventfd_write(self._wakes[worker], 1)

    def ready(self) -> list[int]:
        if self._wrong is not None:
            raise self._wrong
        done = self._shared.done_array.copy()
        changed = np.flatnonzero(done != self._seen)
        self._seen = done
        if self._together > 1:
            changed = self._together * changed + self._shared.turn_array[changed]
        groups: list[int] = changed.tolist()
        return groups

    def failures(self) -> list[EnvFailure]:
        failures, self._failures = self._failures, []
        return failures

    def close(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._shared.stop()
        for wake in self._wakes:
            os.eventfd_write(wake, 1)
        if self._loop is not None:
            self._loop.remove_reader(self._bell)
        if self._host is not None:
            self._host.close()
            self._host = None
        for fd in self._fds:
            os.close(fd)
        self._fds = self._wakes = ()

    def _rung(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        if (self._shared.done_array != self._seen).any():  # and not named by ready() meanwhile
            self._news.set()

    def _start_host(self) -> None:
        assert self._loop is not None
        for worker in range(self._workers):
            self._base[worker] = self._shared.done_by(worker)
            self._shared.busy[worker] = self._shared.beat[worker] = 0
        self._host = HostConnection(self._loop, self._task, self._fds, self._heard, self._host_gone)
        self._host.send(Fork(tuple(range(self._workers))))

    def _heard(self, message: bytes) -> None:
        match reports.decode(message):
            case Failed(failure):
                self._failures.append(failure)
            case NeverWorked(sentence, traceback):
                self._wrong = EnvError(sentence, traceback=traceback)
            case Died(worker, pid, status, stack):
                self._died(worker, f"process {pid} {exit_words(status)}", stack)
        self._news.set()

    def _died(self, worker: int, how: str, stack: str) -> None:
        """Restarts a worker that died; its groups show a dead step as soon as they are sent."""
        where = "time-out" if worker in self._hung else "death"
        self._hung.discard(worker)
        progress = self._shared.done_by(worker) > self._base[worker]
        if stack:
            how += f"\nIt was at\n{stack}"
        if not self._blame(worker, where, how):
            return
        pause = 0.0 if progress else self._pauses[worker]
        self._pauses[worker] = min(max(_PAUSE_S, 2 * pause), _LONGEST_PAUSE_S)
        self._later(pause, lambda: self._fork(worker))

    def _fork(self, worker: int) -> None:
        self._base[worker] = self._shared.done_by(worker)
        self._shared.beat[worker] = 0
        if self._host is not None:
            self._host.send(Fork((worker,)))

    def _blame(self, worker: int, where: str, how: str) -> bool:
        """Reports how the worker ended; False if sampling cannot go on."""
        shared = self._shared
        group = shared.busy[worker] - 1 if shared.busy[worker] else shared.groups_of(worker)[0]
        shared.busy[worker] = 0
        how = f"its {how}"
        if self._wrong is not None:
            return False
        if where == "time-out":
            how = f"no answer for more than {self._timeout_s:g} s; {how}"
        elif not shared.done[group]:
            self._wrong = EnvError(f"{self._task.made.config.id} cannot be made: {how}")
            return False
        first = group * self._together
        self._failures.append(shared.books.failure_of_group(first, where, how))
        return True

    def _host_gone(self, how: str) -> None:
        """Restarts the host; its workers were killed with it."""
        self._host = None
        self._news.set()
        self._hung.clear()
        if not all(self._blame(worker, "death", how) for worker in range(self._workers)):
            return
        done_by = self._shared.done_by
        progress = any(done_by(worker) > base for worker, base in enumerate(self._base))
        pause = 0.0 if progress else self._host_pause
        self._host_pause = min(max(_PAUSE_S, 2 * pause), _LONGEST_PAUSE_S)
        self._later(pause, self._start_host)

    def _watch(self) -> None:
        """Checks periodically for workers that have hung."""
        now, shared = time.monotonic_ns(), self._shared
        for worker, beat in enumerate(shared.beat):
            if beat and shared.waits_for(worker) and now - beat > self._timeout_s * 1e9:
                shared.alive(worker)
                self._hung.add(worker)
                if self._host is not None:
                    self._host.send(Kill(worker))
        if self._host is not None:
            self._host.check()
        self._later(min(1.0, self._timeout_s / 4), self._watch)

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        assert self._loop is not None

        def run() -> None:
            self._timers.discard(timer)
            call()

        timer = self._loop.call_later(seconds, run)
        self._timers.add(timer)
