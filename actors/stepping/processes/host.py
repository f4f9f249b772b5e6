"""The host process: imports what the environments need, once, and forks workers that share it.

It makes no simulator and starts no thread, so that a fork of it is as good as new.
"""

import contextlib
import fcntl
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time

from msgspec import msgpack

from headrace.actors.config import EnvConfig
from headrace.actors.envs.make import make_env
from headrace.actors.stepping.linux import die_with_parent
from headrace.actors.stepping.processes import worker
from headrace.actors.stepping.processes.shared_frame import (
    MESSAGE_BYTES,
    Died,
    Fork,
    Kill,
    Task,
    orders,
)

_STACK_S, _STACK_BYTES = 0.05, 8000  # a worker that is asked where it is answers within that
_END_S = 1.0  # for workers that have been told to end


class Host:
    """Starts, kills and reaps workers."""

    def __init__(self, task: Task, control: socket.socket) -> None:
        self._task = task
        self._control = control
        self._pids: dict[int, int] = {}  # of living workers: their numbers
        self._stacks: dict[int, str] = {}  # of workers being killed: where they were
        # Workers write there when they are asked.
        self._paper = os.memfd_create("stacks")
        fcntl.fcntl(self._paper, fcntl.F_SETFL, os.O_APPEND)

    def run(self) -> None:
        # A child's end makes this readable, whatever the signal interrupts.
        ended, ends = os.pipe()
        for fd in (ended, ends):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(ends, warn_on_full_buffer=False)
        watched = select.poll()
        watched.register(self._control, select.POLLIN)
        watched.register(ended, select.POLLIN)
        while True:
            readable = {fd for fd, _ in watched.poll()}
            if ended in readable:
                with contextlib.suppress(BlockingIOError):
                    os.read(ended, 4096)
                self._reap(tell=True)
            if self._control.fileno() in readable:
                message = self._control.recv(MESSAGE_BYTES)
                if not message or not self._obey(message):
                    break
        self._end()

    def _obey(self, message: bytes) -> bool:
        """Carries out one order. False = end."""
        match orders.decode(message):
            case Fork(workers):
                gc.collect()
                gc.freeze()  # shared pages stay shared: the collector must not write into them
                for number in workers:
                    self._fork(number)
            case Kill(number):
                for pid in [pid for pid, other in self._pids.items() if other == number]:
                    self._stacks[pid] = self._stack(pid)
                    _kill(pid)
            case _:
                return False
        return True

    def _fork(self, number: int) -> None:
        host = os.getpid()
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            worker.run(self._task, number, self._control, host=host, stacks=self._paper)
        self._pids[pid] = number

    def _stack(self, pid: int) -> str:
        os.ftruncate(self._paper, 0)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, worker.ASK_STACK)
        time.sleep(_STACK_S)
        return os.pread(self._paper, _STACK_BYTES, 0).decode(errors="replace")

    def _reap(self, *, tell: bool) -> None:
        while self._pids:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                return
            pid = ended.si_pid
            # The simulators that it had started; while it is not reaped, its number is its own.
            _kill_group(pid)
            _, status = os.waitpid(pid, 0)
            number = self._pids.pop(pid, None)
            if number is None:
                continue
            if tell:
                stack = self._stacks.pop(pid, "")
                died = Died(number, pid, os.waitstatus_to_exitcode(status), stack)
                self._control.send(msgpack.encode(died))

    def _end(self) -> None:
        until = time.monotonic() + _END_S
        self._reap(tell=False)
        while self._pids and time.monotonic() < until:
            time.sleep(0.005)
            self._reap(tell=False)
        for pid in list(self._pids):
            _kill(pid)
        while self._pids:
            self._reap(tell=False)
            time.sleep(0.001)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    _kill_group(pid)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def import_for(config: EnvConfig) -> None:
    """Imports what workers will need, so that they share it. What fails here fails again in a
    worker, which reports it."""
    with contextlib.suppress(Exception):
        for table in (*config.wrappers, {"id": config.id}):
            if ":" in str(table.get("id")):
                importlib.import_module(str(table["id"]).partition(":")[0])
        if ":" not in config.id:
            # Gymnasium's own say only when they are made what they need.
            make_env(config).close()


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    die_with_parent(int(sys.argv[2]))
    # Ctrl-C reaches the whole terminal; the sampler decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    task = msgpack.decode(control.recv(MESSAGE_BYTES), type=Task)
    for fd in (control.fileno(), task.memory, task.news, *task.wakes):
        os.set_inheritable(fd, False)  # not to be held open by simulators
    os.environ.pop("PYTHONPATH", None)
    if task.pythonpath is not None:
        os.environ["PYTHONPATH"] = task.pythonpath
    import_for(task.made.config)
    Host(task, control).run()


if __name__ == "__main__":
    main()
