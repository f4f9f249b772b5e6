"""Shows several runs on the terminal: lines as they go, how each ended, and all in one summary."""

import contextlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.broker import durable
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
        for shown in list(self._shown):
            client, view = shown
            client.ask()
            client.receive()
            view.show(client.status)
            if client.status.get("over"):  # that it is over is said once
                self._shown.remove(shown)


def summarise(name: str, out: Path, policies: Sequence[str]) -> dict[str, Any]:
    """Writes summary.json over the policies' own, as far as they wrote one, and returns it. What is
    said of all is that of the worst."""
    each = {one: _read(out / one / "summary.json") for one in policies}
    solved: list[Any] = [one.get("solved_at_steps") for one in each.values()]
    means: list[Any] = [one.get("mean_return") for one in each.values()]
    reasons = {one.get("stop_reason", "failed") for one in each.values()}
    result = {
        "run": name,
        "stop_reason": reasons.pop() if len(reasons) == 1 else "several",
        "solved_at_steps": None if None in solved else max(solved),
        "mean_return": None if None in means else min(means),
        "wall_s": max((one.get("wall_s", 0.0) for one in each.values()), default=0.0),
        "policies": each,
    }
    durable.write(out / "summary.json", json.dumps(result, indent=2) + "\n")
    return result


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found


def last_words(name: str, run: Run, out: Path, result: dict[str, Any]) -> str:
    """Returns the last lines that a user sees of one policy's run."""
    words = summary.words(result, out, run.stop) if result else "it left no summary, see above"
    return f"{name}: {words}"
