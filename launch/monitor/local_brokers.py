"""Finds the brokers on this machine: those of `headrace train`, and one at the usual port."""

import contextlib
import re
import socket
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from headrace.broker.config import BrokerConfig
from headrace.launch.config.run_file import ConfigError
from headrace.launch.monitor.status_client import PolledStatus, StatusClient

_PORT: Final = urlsplit(BrokerConfig().bind).port or 0
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
        return str(PolledStatus(client)().get("run", "wants a --key"))
