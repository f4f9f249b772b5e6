"""Programs that are forked from a warmed parent, one a session: see nest.py."""

import atexit
import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests import nest


class Forked:
    """One child of the nest, to be used like a Popen."""

    def __init__(self, parent: "Nest", number: int, pid: int) -> None:
        self.pid = pid
        self._parent = parent
        self._number = number  # of its order

    def poll(self) -> int | None:
        return self._parent.ended(self._number)

    def wait(self, timeout: float | None = None) -> int:
        until = time.monotonic() + (timeout or 1e9)
        while (status := self.poll()) is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            time.sleep(0.005)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it ended, and we do not know it yet
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Nest:
    """The warmed parent's handle. It ends when we do."""

    def __init__(self) -> None:
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._popen = subprocess.Popen(
                [sys.executable, nest.__file__, str(theirs.fileno()), nest.ROOM],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env={**os.environ, nest.WORD: nest.NO_WORD, "OMP_NUM_THREADS": "1"},
            )
        self._pids: dict[int, int] = {}  # by number of the order
        self._statuses: dict[int, int] = {}  # of those that ended
        self._made = 0
        atexit.register(self._end)

    def fork(
        self,
        program: str,
        words: Sequence[str],
        *,
        folder: Path,
        log: Path,
        env: Mapping[str, str],
        namespace: str = "",
    ) -> Forked:
        """`program`: a module, or the path of a file. What it says goes to `log`."""
        number, self._made = self._made, self._made + 1
        order = {
            "number": number,
            "words": [program, *words],
            "folder": str(folder),
            "env": dict(env),
            "namespace": namespace,
        }
        with log.open("wb") as sink:
            socket.send_fds(self._orders, [json.dumps(order).encode()], [sink.fileno()])
        while number not in self._pids:
            self._hear(wait=True)
        return Forked(self, number, self._pids[number])

    def ended(self, number: int) -> int | None:
        while self._hear(wait=False):
            pass
        return self._statuses.get(number)

    def _hear(self, *, wait: bool) -> bool:
        """Takes one event; False = there is none."""
        try:
            packet = self._orders.recv(100, 0 if wait else socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        assert packet, "the nest is gone"
        event, number, value = packet.decode().split()
        (self._pids if event == "born" else self._statuses)[int(number)] = int(value)
        return True

    def _end(self) -> None:
        self._orders.close()
        self._popen.wait()


nest_of_the_session = functools.cache(Nest)


def possible(env: Mapping[str, str]) -> bool:
    """What is read when a process starts, or at an import, cannot be changed later."""
    return not any(
        name.startswith(("LD_", "OMP_", "PYTHON")) and name != "PYTHONPATH" for name in env
    )
