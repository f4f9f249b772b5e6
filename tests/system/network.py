"""Hosts of their own for a test's processes, with lines that can be cut, lose packets or be slow.

Each host is a network namespace with one line (a veth pair) to the broker's. nft drops packets at
the host's end, so both ways or one; tbf makes both ends slow. Needs root and a few Debian packages.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from tests.needs import missing
from tests.system.conftest import Place, Process

PORT = 5755
_PACKAGES = {"ip": "iproute2", "tc": "iproute2", "nft": "nftables"}
# Namespaces outlive their processes: the name tells whose they are, so that the next run can clear
# away what one that was killed left behind.
_MARK = "hrtest"


def _command(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr.strip()}"


class Host:
    """One machine, as far as its network goes."""

    def __init__(self, namespace: str, number: int) -> None:
        self.namespace = namespace
        self.broker = f"tcp://10.88.{number}.1:{PORT}"  # where it finds the broker

    def headrace(self, place: Place, *arguments: str) -> Process:
        return place.headrace(*arguments, namespace=self.namespace)

    def learner(self, place: Place, *arguments: str) -> Process:
        return self.headrace(
            place, "learner", "--run", place.run, "--broker", self.broker, "--out", str(place.out),
            "--ledger", str(place.ledger), *arguments,
        )  # fmt: skip

    def actor(self, place: Place, *arguments: str) -> Process:
        return self.headrace(
            place, "actor", "--broker", self.broker, "--ledger", str(place.ledger), "--seed", "3",
            *arguments,
        )  # fmt: skip

    # ---- faults of its line ---------------------------------------------------------------------

    def cut(self, way: str) -> None:
        """No packet passes: "both" ways, only those "to" the broker, or only those "from" it."""
        self._rules("drop", way)

    def lose(self, percent: int) -> None:
        """Of the packets of each direction."""
        self._rules(f"numgen random mod 100 < {percent} drop", "both")

    def heal(self) -> None:
        self._nft("flush table inet hr")

    def slow(self, kbit: int) -> None:
        """Both ways; about half a second of packets waits at most, what comes beyond is dropped."""
        for namespace, device in self._ends():
            self._tc(
                "replace", namespace, device, "tbf", "rate", f"{kbit}kbit", "burst", "16kb",
                "latency", "400ms",
            )  # fmt: skip

    def fast(self) -> None:
        for namespace, device in self._ends():
            self._tc("del", namespace, device)

    # ---- inside ---------------------------------------------------------------------------------

    def connect(self, hub: str) -> None:
        """A line to the broker's host, named there after its number."""
        self._hub, self._hub_device = hub, f"to{self.broker.split('.')[2]}"
        _command(
            "ip", "link", "add", "name", "eth0", "netns", self.namespace,
            "type", "veth", "peer", "name", self._hub_device, "netns", hub,
        )  # fmt: skip
        subnet = self.broker.removeprefix("tcp://").rpartition(".")[0]
        for (namespace, device), last in zip(self._ends(), (2, 1), strict=True):
            inside = ("ip", "-n", namespace)
            _command(*inside, "addr", "add", f"{subnet}.{last}/24", "dev", device)
            # One packet stays one: what is dropped or delayed is what a wire would carry.
            _command(*inside, "link", "set", device, "gso_max_segs", "1", "up")
        self._nft("add table inet hr")
        for chain in ("input", "output"):
            self._nft(f"add chain inet hr {chain} {{ type filter hook {chain} priority 0; }}")

    def _ends(self) -> tuple[tuple[str, str], tuple[str, str]]:
        return (self.namespace, "eth0"), (self._hub, self._hub_device)

    def _rules(self, what: str, way: str) -> None:
        self.heal()
        for chain in {"both": ("input", "output"), "to": ("output",), "from": ("input",)}[way]:
            device = "iifname" if chain == "input" else "oifname"
            self._nft(f"add rule inet hr {chain} {device} eth0 {what}")

    def _nft(self, rule: str) -> None:
        _command("ip", "netns", "exec", self.namespace, "nft", rule)

    def _tc(self, verb: str, namespace: str, device: str, *words: str) -> None:
        _command("tc", "-n", namespace, "qdisc", verb, "dev", device, "root", *words)


class Network:
    """The broker's host and those around it."""

    def __init__(self) -> None:
        self.hub = self._namespace("broker")
        self._hosts = 0

    def host(self, name: str) -> Host:
        self._hosts += 1
        made = Host(self._namespace(name), self._hosts)
        made.connect(self.hub)
        return made

    def broker(self, place: Place, *arguments: str) -> Process:
        """Listens on all of its lines."""
        bind = f"tcp://0.0.0.0:{PORT}"
        process = place.headrace(
            "broker", "--run", place.run, "--bind", bind, "--insecure", *arguments,
            namespace=self.hub,
        )  # fmt: skip
        process.says("run small at")
        return process

    def close(self) -> None:
        _clear(own=True)

    def _namespace(self, name: str) -> str:
        namespace = f"{_MARK}-{os.getpid()}-{name}"
        _command("ip", "netns", "add", namespace)
        _command("ip", "-n", namespace, "link", "set", "lo", "up")
        return namespace


def _clear(*, own: bool) -> None:
    """Our namespaces, and those of runs that are no more. Their lines vanish with them."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    for line in listed.stdout.splitlines():
        name = line.split()[0]
        mark, _, rest = name.partition("-")
        pid = rest.partition("-")[0]
        if mark == _MARK and (own if pid == str(os.getpid()) else not _alive(pid)):
            subprocess.run(["ip", "netns", "del", name], check=False)


def _alive(pid: str) -> bool:
    return os.path.exists(f"/proc/{pid}")  # noqa: PTH110


@pytest.fixture
def net() -> Iterator[Network]:
    """Skips where it cannot be had."""
    lacking = sorted({package for tool, package in _PACKAGES.items() if not shutil.which(tool)})
    if lacking:
        missing(f"not installed: apt-get install {' '.join(lacking)}")
    if os.geteuid():
        missing("network namespaces need root")
    _clear(own=True)
    try:
        made = Network()
        yield made
    finally:
        _clear(own=True)
