"""A warmed parent that forks Python programs: torch is imported once, not in every process.

Run as a script, with the number of a socket. An order is a packet of JSON with a log's descriptor
beside it; what became of the children comes back, a packet each:

    born NUMBER PID        ended NUMBER STATUS        (negative: killed by that signal)

A child is a whole process of its own, as `python -m MODULE` or `python FILE` would be: only the
imports are shared. Another argument, of spaces, leaves room for the child's own command line.
"""

import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
from pathlib import Path
from typing import Any, NoReturn

# The word of a test stands here in every child's environment.
WORD, NO_WORD = "HEADRACE_SYSTEM_TEST", "0" * 32
MOST_BYTES = 100_000
# What the programs share; every optimiser asks for torch._dynamo, every run ends with a picture.
WARMED = (
    "gymnasium",
    "gymnasium.envs.classic_control",
    "torch._dynamo",
    "torch.profiler._cupti_monitor",
    "matplotlib.backends.backend_agg",
    "matplotlib.pyplot",
    "rich.live",
    "headrace.launch.local.train",
    "headrace.launch.local.summary",
    "headrace.launch.roles.sampler",
    "headrace.launch.roles.broker",
    "headrace.launch.roles.learner",
)
ROOM = " " * 2000
_NEW_NET, _NEW_MOUNTS = 0x40000000, 0x20000
_BIND, _PRIVATE = 0x1000, 0x44000  # the second with all mounts below


def main(number: int) -> None:
    """Until the tests' end of the socket is closed."""
    # Here, not above: the tests import this file for its names.
    for module in WARMED:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    orders = socket.socket(fileno=number)
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    numbers: dict[int, int] = {}  # child's pid -> number of its order
    while True:
        ready = select.select([orders.fileno(), woken], [], [])[0]
        if orders.fileno() in ready:
            text, descriptors, _, _ = socket.recv_fds(orders, MOST_BYTES, 1)
            if not text:
                return
            order, (log,) = json.loads(text), descriptors
            pid = os.fork()
            if pid == 0:
                for fd in (orders.detach(), woken, wake):
                    os.close(fd)
                become(order, log)
            os.close(log)
            numbers[pid] = order["number"]
            orders.send(f"born {order['number']} {pid}".encode())
        if woken in ready:
            os.read(woken, 4096)
        while numbers:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            orders.send(f"ended {numbers.pop(pid)} {os.waitstatus_to_exitcode(status)}".encode())


def become(order: dict[str, Any], log: int) -> NoReturn:
    """The child's whole life. It ends as any interpreter does: nobody above us catches anything."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    if order["namespace"]:
        enter_network(order["namespace"])
        _enter_files(order["namespace"])
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["env"])
    own = order["env"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:1] = [order["folder"], *(path for path in own if path and path not in sys.path)]
    program, *sys.argv[1:] = order["words"]
    _shown_as(order["words"], order["env"].get(WORD, NO_WORD))
    if program.endswith(".py"):
        sys.path[0] = str(Path(program).parent)
        runpy.run_path(program, run_name="__main__")
    else:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    raise SystemExit(0)


def enter_network(namespace: str) -> None:
    """A network of its own, by the name that `ip netns add` gave it."""
    with open(f"/run/netns/{namespace}") as place:  # noqa: PTH123  # its descriptor is wanted
        if ctypes.CDLL(None, use_errno=True).setns(place.fileno(), _NEW_NET):
            raise OSError(ctypes.get_errno(), f"the namespace {namespace} cannot be entered")


def _enter_files(namespace: str) -> None:
    """Lays its own files over those in /etc, as `ip netns exec` does; nobody else sees it."""
    own = Path("/etc/netns", namespace)
    if not own.is_dir():
        return
    library = ctypes.CDLL(None, use_errno=True)
    done = library.unshare(_NEW_MOUNTS) or library.mount(b"", b"/", None, _PRIVATE, None)
    for file in own.iterdir():
        over = f"/etc/{file.name}".encode()
        done = done or library.mount(str(file).encode(), over, None, _BIND, None)
    if done:
        raise OSError(ctypes.get_errno(), f"the files of {namespace} cannot be laid over /etc")


def _shown_as(words: list[str], word: str) -> None:
    """What the kernel shows of us is what lies where it put our arguments and environment."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    arguments, arguments_end, environment, environment_end = map(int, fields[45:49])
    command = "\0".join([sys.executable, *words]).encode()
    room = arguments_end - arguments
    ctypes.memmove(arguments, command[: room - 1].ljust(room, b"\0"), room)
    text = ctypes.string_at(environment, environment_end - environment)
    at = text.index(f"{WORD}={NO_WORD}".encode()) + len(WORD) + 1
    ctypes.memmove(environment + at, word.encode(), len(NO_WORD))


if __name__ == "__main__":
    main(int(sys.argv[1]))
