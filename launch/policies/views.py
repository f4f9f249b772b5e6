"""Shows several runs on the terminal: lines as they go, and how each ended."""

import contextlib
import json
import time
from collections.abc import Sequence
from pathlib import Path

from headrace.launch.config import keyring
from headrace.launch.config.run_file import Run
from headrace.launch.local import summary
from headrace.launch.monitor.live_view import LiveView
from headrace.launch.monitor.status_client import StatusClient


class Views(contextlib.ExitStack):
    """Prints a line for each run every few seconds."""

    def __init__(self, runs: Sequence[tuple[str, Run, str]]) -> None:
        """Watches runs: name, run, and address of the broker."""
        super().__init__()
        self._shown: list[tuple[StatusClient, LiveView]] = []
        for name, run, endpoint in runs:
            client = StatusClient(endpoint, keyring.key(run, "watcher", None))
            self.callback(client.close)
            view = LiveView(
                run=name, stop=run.stop, began=time.monotonic(), quiet=False, named=True
            )
            self._shown.append((client, view))

    def show(self) -> None:
        for client, view in self._shown:
            client.ask()
            client.receive()
            view.show(client.status)


def last_words(name: str, run: Run, out: Path) -> str:
    """Returns the last lines that a user sees of one policy's run."""
    try:
        result = json.loads((out / "summary.json").read_text())
    except (OSError, ValueError):
        return f"{name}: it has no summary; its lines above say why"
    return f"{name}: {summary.words(result, out, run.stop)}"
