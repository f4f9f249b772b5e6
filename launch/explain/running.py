"""`headrace explain --broker`: what the broker of a running run says of it."""

import contextlib
import time
from pathlib import Path
from typing import Final

from headrace.broker import sanitise
from headrace.launch.config import keyring, run_file
from headrace.launch.monitor import local_brokers, status_client
from headrace.launch.monitor.status_client import StatusClient
from headrace.launch.process import runtime

_JUDGED_WITHIN_S: Final = 15.0  # a broker judges a run every few seconds
_ASK_EVERY_S: Final = 0.5
_MOST_WORDS: Final = 1000


def explain(address: str, *, key: Path | None) -> int:
    """Prints what holds the run back; `address`: "" = of the only broker of this machine. Returns
    the exit status."""
    address = address or local_brokers.only_one()
    client = StatusClient(address, keyring.from_file(key, ""))
    with contextlib.closing(client):
        asked = runtime.StopRequested()
        deadline = time.monotonic() + _JUDGED_WITHIN_S
        if not status_client.wait_for_first(client, address, asked):
            return runtime.LIMIT
        if "explain" not in client.status:
            raise run_file.ConfigError(f"{address}: its release does not explain a run; upgrade it")
        while not (asked or client.status["explain"] or time.monotonic() > deadline):
            time.sleep(_ASK_EVERY_S)
            client.ask()
            client.wait(_ASK_EVERY_S)
            client.receive()
        for line in client.status["explain"]:
            print(sanitise.words(str(line), _MOST_WORDS))  # noqa: T201
    return runtime.OK
