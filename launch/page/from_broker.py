"""A broker's numbers by way of its wire, for who may not look at its HTTP port."""

import time
from collections.abc import Mapping
from typing import Any, Final

from launch.watch import Watcher

_PATIENCE_S: Final = 2.0
_AGAIN_S: Final = 0.5


class FromBroker:
    """Called by one thread at a time; it asks the broker only then."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher

    def __call__(self) -> Mapping[str, Any]:
        """Without an answer: the last one, and for how long there was none."""
        watcher, began = self._watcher, time.monotonic()
        watcher.look()  # what came after our patience is old
        before, asked = watcher.heard, float("-inf")
        while (now := time.monotonic()) < began + _PATIENCE_S:
            if now >= asked + _AGAIN_S:
                watcher.ask()
                asked = now
            watcher.wait(_AGAIN_S)
            watcher.look()
            if watcher.heard != before:
                return watcher.status
        return {**watcher.status, "silent_s": watcher.silent_s()}
