"""Callbacks of the program that called headrace.train, in its own process."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.launch.sinks import follow
from headrace.launch.sinks.callbacks import Callbacks, CallbackSink, StopRun


class Caller:
    """Tells callbacks what is new in the run's folder since the last look."""

    def __init__(self, callbacks: Callbacks, folder: Path, *, goes_on: bool) -> None:
        self._callbacks, self._folder = callbacks, folder
        self._sink: CallbackSink | None = None  # None = there was no look yet
        # What an earlier start wrote is not news.
        self._offsets = {name: _size(folder / name) if goes_on else 0 for name in follow.FILES}

    def look(self) -> None:
        """Makes the calls; raises what they raise."""
        if self._sink is None:
            self._sink = CallbackSink(self._callbacks, self._folder)
        while follow.send(self._folder, self._sink, self._offsets, began=0.0):
            pass

    def end(self, summary: Mapping[str, Any]) -> None:
        """Tells the rest, and that the run is over; it can be stopped no more."""
        with contextlib.suppress(StopRun):
            self.look()
        self._callbacks.on_end(summary)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
