"""Starts the host process, listens to it, and ends it."""

import asyncio
import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct, msgpack

from headrace.actors.envs.convert import EnvError
from headrace.actors.stepping.processes.shared_frame import MESSAGE_BYTES, Stop, Task

_END_S = 2.0  # for a host that has been told to end; its workers get half of that
# A library call in a worker must not start threads on the cores that the others use.
_ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "NUMEXPR")}
_SPARE_DESCRIPTORS = 16  # the host's, and what this process opens later


class HostConnection:
    """Connects to one host process; when it is gone, so are its workers."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        task: Task,
        fds: Sequence[int],
        heard: Callable[[bytes], None],
        gone: Callable[[str], None],
    ) -> None:
        self._loop, self._heard, self._gone = loop, heard, gone
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "headrace.actors.stepping.processes.host",
                    str(theirs.fileno()),
                    str(os.getpid()),
                ],
                pass_fds=(theirs.fileno(), *fds),
                stdin=subprocess.DEVNULL,
                # It finds what we find, a factory in some folder too.
                env=_ONE_THREAD | dict(os.environ) | {"PYTHONPATH": os.pathsep.join(sys.path)},
            )
        self._socket.setblocking(False)
        self._send(msgpack.encode(task))
        loop.add_reader(self._socket, self._readable)

    def send(self, message: Struct) -> None:
        self._send(msgpack.encode(message))

    def close(self) -> None:
        """Ends the host and whatever is left of its workers, which have been told to end."""
        self._loop.remove_reader(self._socket)
        self.send(Stop())
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        self._process.kill()
        self._process.wait()
        self._socket.close()

    def _send(self, data: bytes) -> None:
        try:
            self._socket.send(data)
        except BlockingIOError:
            self._process.kill()  # it has not listened for hundreds of messages
        except OSError:
            pass  # it is gone, which is about to be noticed

    def _readable(self) -> None:
        for _ in range(64):
            try:
                message = self._socket.recv(MESSAGE_BYTES)
            except BlockingIOError:
                return
            except OSError:
                message = b""
            if message:
                self._heard(message)
                continue
            self._end()
            return

    def check(self) -> None:
        """Checks whether the host has ended: its end of the socket may be held open by what a
        simulator has started."""
        if self._process.poll() is not None:
            self._end()

    def _end(self) -> None:
        self._loop.remove_reader(self._socket)
        self._socket.close()
        self._process.kill()
        self._gone(f"host process {self._process.pid} {exit_words(self._process.wait())}")


def exit_words(status: int) -> str:
    """Returns in words how a process ended."""
    if status >= 0:
        return f"ended with exit status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"


def check_descriptors(workers: int) -> None:
    """Raises EnvError if the workers would exceed the limit of file descriptors."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    needed = len(list(Path("/proc/self/fd").iterdir())) + workers + _SPARE_DESCRIPTORS
    if needed > limit:
        raise EnvError(
            f"{workers} workers need {needed} file descriptors, the limit here is {limit}; raise"
            " it (ulimit -n) or lower actor.groups"
        )
