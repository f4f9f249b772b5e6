"""A process that imported torch once, has no threads, and forks a node's processes when it is told.

    node --settings, then one ForkOrder a line--> forker --pid--> node  (one socket, both ways)
                                                  |
                                                  +-- fork, fork --> sampler, child of the node

Forked from here a sampler starts at once and shares what was imported, also when it is started
again. The process in between ends at once, so that the node, not the forker, adopts the sampler:
what kills the forker harms no sampler. It ends with the node.
"""

import contextlib
import gc
import importlib
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from headrace.launch.node.metrics import ACT
from headrace.launch.process import forking, runtime
from headrace.launch.roles.options import PeerOptions

MOST_BYTES: Final = 1 << 16
READY: Final = b"ready"
# Only the node speaks to the service manager.
_NODE_ONLY: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
# Before numpy and torch are imported: a fork keeps only one thread, so there must be no other.
_ONE_THREAD: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Settings(Struct, frozen=True):
    """Holds what all processes of a node share."""

    node: int  # its process
    peers: tuple[PeerOptions, ...]  # of each, with the node's own name: one for each broker
    shelves: tuple[Path, ...]  # where the relays put weights
    tell: Path  # the node's socket: figures and lines go there
    quiet: bool
    form: str  # of log lines
    port: int = 0  # where the node serves metrics; 0 = nowhere


class ForkOrder(Struct, frozen=True):
    """Orders the start of one process. index -1 = the first broker's relay, -2 the second's ..,
    ACT = the act process."""

    index: int
    core: int = -1  # it runs there only; -1 = anywhere it may


Message = TypeVar("Message", Settings, ForkOrder)


def encode(message: Settings | ForkOrder) -> bytes:
    return msgspec.json.encode(message, enc_hook=str)  # str: of paths


def decode(line: bytes, kind: type[Message]) -> Message:
    return msgspec.json.decode(line, type=kind, dec_hook=lambda _, word: Path(word))


class Forker:
    """Starts the forker, and talks to it from the node's end. One that ended is started again by
    the next order that is due."""

    def __init__(self, settings: Settings) -> None:
        self.ready = False  # it has imported what it must
        self._settings = settings
        self._popen: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    @property
    def alive(self) -> bool:
        return self._popen is not None and self._popen.poll() is None

    @property
    def fd(self) -> int:
        """Returns the descriptor to wait for; -1 = there is nothing to wait for."""
        return self._socket.fileno() if self._socket is not None else -1

    def start(self) -> int:
        """Starts the forker as a fresh interpreter, as this process may have threads; returns its
        pid."""
        self.close()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", "headrace.launch.node.forker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                # Only the node speaks to systemd.
                env={name: word for name, word in os.environ.items() if name != "NOTIFY_SOCKET"},
            )
        self._socket.setblocking(False)
        self._send(self._settings)
        return self._popen.pid

    def order(self, order: ForkOrder) -> bool:
        """Sends an order; False = not now."""
        return self.ready and self._send(order)

    def forked(self) -> list[tuple[int, int]]:
        """Returns index and pid of those that were started since the last call; pid 0 = that
        failed."""
        found: list[tuple[int, int]] = []
        while self._socket is not None:
            try:
                line = self._socket.recv(MOST_BYTES)
            except BlockingIOError:
                break
            except OSError:
                line = b""
            if not line:
                self._hang_up()
            elif line == READY:
                self.ready = True
            else:
                index, pid = map(int, line.split())
                found.append((index, pid))
        return found

    def close(self) -> None:
        """Ends the forker."""
        self._hang_up()
        if self._popen is not None:
            self._popen.kill()
            self._popen.wait()
            self._popen = None

    def _hang_up(self) -> None:
        self.ready = False
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, message: Settings | ForkOrder) -> bool:
        if self._socket is None:
            return False
        try:
            self._socket.send(encode(message))
        except OSError:
            return False
        return True


def main(fd: int) -> int:
    """Forks what the node orders, until the node closes its end."""
    for name in _ONE_THREAD:
        os.environ.setdefault(name, "1")
    for name in _NODE_ONLY:
        os.environ.pop(name, None)
    with socket.socket(fileno=fd) as orders:
        settings = decode(orders.recv(MOST_BYTES), Settings)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's; the node decides who ends
        runtime.die_with_parent(settings.node)
        runtime.show_as("forker")
        # Not above: a test of this file needs none of them, and here they are imported once.
        roles = [f"headrace.launch.roles.{name}" for name in ("sampler", "relay", "act")]
        modules = ["gymnasium", *roles]
        modules += ["headrace.launch.policies.sampler"] * (len(settings.peers) > 1)
        for module in modules:
            importlib.import_module(module)
        gc.collect()
        orders.send(READY)
        while line := orders.recv(MOST_BYTES):
            order = decode(line, ForkOrder)
            orders.send(f"{order.index} {_fork(settings, order, orders)}".encode())
    return runtime.OK


def _fork(settings: Settings, order: ForkOrder, orders: socket.socket) -> int:
    """Forks a process that the node adopts; returns its pid, 0 = that failed."""

    def run() -> int:
        orders.close()
        return _run_role(settings, order)

    try:
        return forking.fork_for(settings.node, [forking.Work(_name(order), run)])[0]
    except ChildProcessError:
        return 0


def _name(order: ForkOrder) -> str:
    return relay_name(order.index) if order.index < 0 else f"sampler-{order.index}"


def relay_name(index: int) -> str:
    if index == ACT:
        return "act"
    return "relay" if index == -1 else f"relay-{-index}"


def _run_role(settings: Settings, order: ForkOrder) -> int:
    """Runs one process's role."""
    from headrace.launch.process import logs, node_reports
    from headrace.launch.roles import act, relay, sampler

    runtime.show_as(_name(order))
    own = f"{settings.peers[0].name}-{order.index}"
    name = own if order.index >= 0 else "act" if order.index == ACT else "relay"
    logs.start(name, quiet=settings.quiet, form=settings.form)
    sender = node_reports.ReportSender(settings.tell)
    node_reports.log_to_node(sender)
    if order.index == ACT:
        return act.act(folder=settings.shelves[0].parent, sender=sender)
    if order.index < 0:
        peer, shelf = settings.peers[-1 - order.index], settings.shelves[-1 - order.index]
        return relay.relay(peer, shelf=shelf, sender=sender, port=settings.port)
    if order.core >= 0:
        with contextlib.suppress(OSError):  # a service manager may forbid it: little is lost
            os.sched_setaffinity(0, {order.core})
    seed = runtime.incarnation() % 2**31
    # The relay says when their broker is gone, and the whole node leaves it.
    peers = [replace(peer, name=own, brokers="") for peer in settings.peers]
    if len(peers) > 1:
        from headrace.launch.policies.sampler import sample

        return sample(peers, seed=seed, shelves=settings.shelves, sender=sender)
    return sampler.sample(peers[0], seed=seed, shelf=settings.shelves[0], sender=sender)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
