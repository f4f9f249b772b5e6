"""Adds to the broker's status how long the newest sampled unrolls took from station to station."""

import dataclasses
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from headrace.broker.journal import trace_reader

_EVERY_S: Final = 10.0
_NEWEST: Final = 2**20  # bytes of all files: a fraction of a second of work, in a thread of its own


class TracedStatus:
    """Reads the traces in the broker's own folder: those of processes that write elsewhere are not
    there. Its caller lets in one thread at a time."""

    def __init__(self, status: Callable[[], Mapping[str, Any]], ledger: Path) -> None:
        self._status = status
        self._ledger = ledger
        self._ways: list[dict[str, Any]] = []
        self._until = float("-inf")  # when they are read again, by time.monotonic

    def __call__(self) -> Mapping[str, Any]:
        if time.monotonic() >= self._until:
            try:
                ways = trace_reader.read(self._ledger, newest=_NEWEST).ways()
                self._ways = [dataclasses.asdict(way) for way in ways if way.unrolls]
            except OSError:  # a file was set aside; the next look finds it
                pass
            self._until = time.monotonic() + _EVERY_S
        return {**self._status(), "ways": self._ways}
