"""Hosts of their own for a test's processes, with lines that can be cut, lossy, slow and long.

Each host is a network namespace; all are joined by one router, a process of ours (line.py), because
not every kernel can delay packets. The broker has a name, which every host reads in a file of its
own. Needs root, /dev/net/tun and `ip`.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.needs import missing
from tests.system.conftest import Place, Process
from tests.system.network.line import Condition

NAME, PORT = "headrace-broker", 5755
BROKER = f"tcp://{NAME}:{PORT}"  # where everybody finds it
_ROOT = Path(__file__).resolve().parents[3]
_WAYS = {"both": ("to", "from"), "to": ("to",), "from": ("from",)}
# Namespaces outlive their processes: the name tells whose they are, so that the next run can clear
# away what one that was killed left behind.
_MARK = "hrtest"


def _command(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr.strip()}"


class Router:
    """The process that carries all packets."""

    def __init__(self) -> None:
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._orders.settimeout(30.0)
        with theirs:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", "tests.system.network.line", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                cwd=_ROOT,
            )

    def order(self, **words: object) -> None:
        """Returns when it is done."""
        self._orders.send(json.dumps(words).encode())
        assert self._orders.recv(100) == b"done", "the router ended"

    def close(self) -> None:
        self._orders.close()
        self._popen.wait(30.0)


class Host:
    """One machine, as far as its network goes."""

    def __init__(self, router: Router, namespace: str, number: int) -> None:
        self.namespace = namespace
        self.address = f"10.88.0.{number + 1}"
        self._router = router
        self._number = number
        self._files = Path("/etc/netns", namespace)
        self._files.mkdir(parents=True, exist_ok=True)
        router.order(open=namespace)
        inside = ("ip", "-n", namespace)
        _command(*inside, "link", "set", "lo", "up")
        _command(*inside, "link", "set", "eth0", "up")
        self.takes(self.address)

    def headrace(self, place: Place, *arguments: str) -> Process:
        return place.headrace(*arguments, namespace=self.namespace)

    def broker(self, place: Place, *arguments: str) -> Process:
        """Listens at all of its addresses."""
        process = self.headrace(
            place,
            "broker",
            "--run",
            place.run,
            "--bind",
            f"tcp://0.0.0.0:{PORT}",
            "--ledger",
            str(place.ledger),
            "--insecure",
            *arguments,
        )
        process.says("run small at")
        return process

    def learner(self, place: Place, *arguments: str) -> Process:
        return self.headrace(
            place,
            "learner",
            "--run",
            place.run,
            "--broker",
            BROKER,
            "--out",
            str(place.out),
            "--ledger",
            str(place.ledger),
            *arguments,
        )

    def actor(self, place: Place, *arguments: str, broker: str = BROKER) -> Process:
        return self._samples(place, "actor", "--seed", "3", *arguments, broker=broker)

    def node(self, place: Place, *arguments: str, broker: str = BROKER) -> Process:
        return self._samples(place, "node", *arguments, broker=broker)

    def _samples(
        self, place: Place, command: str, *arguments: str, broker: str = BROKER
    ) -> Process:
        told = ("--broker", broker, "--ledger", str(place.ledger), *arguments)
        return self.headrace(place, command, *told)

    def takes(self, address: str) -> None:
        """From now on what is sent there comes here; who had it has it no more."""
        _command("ip", "-n", self.namespace, "addr", "add", f"{address}/24", "dev", "eth0")
        self._router.order(address=address, host=self._number)

    def gives_up(self, address: str) -> None:
        _command("ip", "-n", self.namespace, "addr", "del", f"{address}/24", "dev", "eth0")

    def finds_broker_at(self, address: str) -> None:
        """In its file of names; written in place, because running processes look into this one."""
        own = f"{self.address} {socket.gethostname()}"
        text = f"127.0.0.1 localhost\n{own}\n{address} {NAME}\n"
        (self._files / "hosts").write_text(text)

    # ---- its line -------------------------------------------------------------------------------

    def becomes(self, condition: Condition, way: str = "both") -> None:
        """Both ways of its line, only the one "to" the others, or only the one "from" them."""
        for one in _WAYS[way]:
            self._router.order(condition=condition._asdict(), host=self._number, way=one)

    def cut(self, way: str = "both") -> None:
        """No packet passes, and nobody is told."""
        self.becomes(Condition(loss=1.0), way)

    def heal(self) -> None:
        self.becomes(Condition())

    def dies(self) -> None:
        """Loses its power: all of its processes, and nobody is told."""
        self.cut()
        command = ["ip", "netns", "pids", self.namespace]
        for pid in subprocess.run(command, capture_output=True, check=True).stdout.split():
            os.kill(int(pid), signal.SIGKILL)


class Network:
    """The broker's host and those around it."""

    def __init__(self) -> None:
        self._router = Router()
        self._hosts: list[Host] = []
        self.hub = self.host("broker")

    def host(self, name: str) -> Host:
        namespace = f"{_MARK}-{os.getpid()}-{name}"
        _command("ip", "netns", "add", namespace)
        made = Host(self._router, namespace, len(self._hosts))
        self._hosts.append(made)
        made.finds_broker_at(self._hosts[0].address)
        return made

    def broker_is_at(self, address: str) -> None:
        """By its name, for everybody who looks from now on."""
        for host in self._hosts:
            host.finds_broker_at(address)

    def exchange_addresses(self, one: Host, other: Host) -> None:
        """What was sent to one comes to the other now."""
        one.gives_up(one.address)
        other.gives_up(other.address)
        one.address, other.address = other.address, one.address
        one.takes(one.address)
        other.takes(other.address)

    def close(self) -> None:
        self._router.close()
        _clear()


def _clear() -> None:
    """Our namespaces, and those of runs that are no more."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    for line in listed.stdout.splitlines():
        name = line.split()[0]
        mark, _, rest = name.partition("-")
        pid = rest.partition("-")[0]
        if mark == _MARK and (pid == str(os.getpid()) or not _alive(pid)):
            subprocess.run(["ip", "netns", "del", name], check=False)
            shutil.rmtree(Path("/etc/netns", name), ignore_errors=True)


def _alive(pid: str) -> bool:
    return os.path.exists(f"/proc/{pid}")  # noqa: PTH110


@pytest.fixture
def net() -> Iterator[Network]:
    """Skips where it cannot be had."""
    if not shutil.which("ip"):
        missing("not installed: apt-get install iproute2")
    if os.geteuid():
        missing("network namespaces need root")
    if not Path("/dev/net/tun").exists():
        missing("no /dev/net/tun: load the kernel module tun, or lend the device to the container")
    _clear()
    made = Network()
    try:
        yield made
    finally:
        made.close()
