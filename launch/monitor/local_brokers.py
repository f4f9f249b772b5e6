"""Finds the brokers that run on this machine: those of `headrace train`, and one at port 5755."""

import contextlib
import re
import socket
import time
from pathlib import Path
from typing import Final

from headrace.launch.config.run_file import ConfigError
from headrace.launch.monitor.status_client import StatusClient

_PORT: Final = 5755
_ANSWERS_S: Final = 2.0
_SOCKETS: Final = Path("/proc/net/unix")  # a line for each; its path stands last
_NAMED: Final = re.compile(r" (/\S.*/broker)$", re.MULTILINE)


def only_one() -> str:
    """Returns the address of the only broker here; ConfigError when there is none, or several."""
    addresses = listening()
    if len(addresses) == 1:
        return addresses[0]
    if not addresses:
        raise ConfigError("no run was found on this machine; name its broker: --broker ADDRESS")
    runs = ", ".join(f"{address} ({_run_at(address)})" for address in addresses)
    raise ConfigError(f"several runs are on this machine; name one with --broker: {runs}")


def listening() -> list[str]:
    """Returns the addresses at which something listens that is named as a broker would be."""
    try:
        paths = set(_NAMED.findall(_SOCKETS.read_text(errors="replace")))
    except OSError:  # not on every system
        paths = set()
    found = [f"ipc://{path}" for path in sorted(paths) if _answers(socket.AF_UNIX, path)]
    tcp = _answers(socket.AF_INET, ("127.0.0.1", _PORT))
    return [*found, *[f"tcp://127.0.0.1:{_PORT}"] * tcp]


def _answers(family: socket.AddressFamily, address: str | tuple[str, int]) -> bool:
    with socket.socket(family) as probe, contextlib.suppress(OSError):
        probe.settimeout(0.2)
        probe.connect(address)
        return True
    return False


def _run_at(address: str) -> str:
    """Returns the name of the run there."""
    with contextlib.closing(StatusClient(address)) as client:
        deadline = time.monotonic() + _ANSWERS_S
        while not client.status and not client.refused and time.monotonic() < deadline:
            client.ask()
            client.wait(0.2)
            client.receive()
        return str(client.status.get("run", "wants a --key"))
