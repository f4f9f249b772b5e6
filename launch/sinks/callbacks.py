"""Callbacks: what a class of the user's is told of a run, in the caller's process or as a sink.

It reads what the run writes into its folder, as every sink does, so training never waits for it.
"""

import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from headrace.launch.sinks import slow_calls
from headrace.launch.sinks.told import Kept

log = logging.getLogger(__name__)

_LONG_S: Final = 10.0  # of a call


class StopRun(Exception):  # noqa: N818 - it is a wish, not an error
    """Ends the run when a callback raises it, with a checkpoint, as Ctrl-C does."""


class Callbacks:
    """Hears of a run; a subclass defines what it needs. Training goes on during a call."""

    def on_start(self, folder: Path) -> None:
        """Hears, before anything else, where the run writes."""

    def on_version(self, figures: Mapping[str, float]) -> None:
        """Hears each new line of history.jsonl, some four a second; without what is null there."""

    def on_episode(self, figures: Mapping[str, float]) -> None:
        """Hears of training episodes that were trained on, of as many as log.episodes says."""

    def on_evaluation(self, figures: Mapping[str, float]) -> None:
        """Hears each new line of evaluations.jsonl."""

    def on_checkpoint(self, folder: Path) -> None:
        """Hears of a newer checkpoint than at the last look."""

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """Hears that the run is over, and what summary.json says."""


class CallbackSink:
    """Turns what a sink is told into calls."""

    id = "callbacks"  # so that each line is told once, however often the run is continued

    def __init__(self, callbacks: Callbacks, folder: Path) -> None:
        self.where = type(callbacks).__qualname__
        self._callbacks, self._folder = callbacks, folder
        self._checkpoint = self._newest()
        self._call("on_start", folder)

    def row(self, figures: Mapping[str, float], *, step: int, at: float) -> None:
        del at
        about = next(iter(figures), "").partition("/")[0]
        plain = {name.partition("/")[2]: value for name, value in figures.items()}
        names = {"evaluation": "on_evaluation", "episode": "on_episode"}
        self._call(names.get(about, "on_version"), {"trained_steps": step, **plain})
        self._look()

    def end(self, kept: Kept) -> None:
        del kept  # what they are told is all of it
        self._look()
        self._call("on_end", json.loads((self._folder / "summary.json").read_text()))

    def close(self) -> None:
        """Does nothing: every call has been made."""

    def _look(self) -> None:
        newest = self._newest()
        if newest and newest != self._checkpoint:
            self._checkpoint = newest
            self._call("on_checkpoint", self._folder / "checkpoints" / newest)

    def _newest(self) -> str:
        folder = self._folder / "checkpoints"
        names = (path.name for path in folder.glob("*") if path.name.isdigit())
        return max(names, default="")

    def _call(self, name: str, told: Any) -> None:
        began = time.monotonic()
        with slow_calls.told(f"{self.where}.{name}", after_s=_LONG_S):
            getattr(self._callbacks, name)(told)
        if (took := time.monotonic() - began) > _LONG_S:
            log.warning("%s.%s took %.0f s; the run went on", self.where, name, took)
