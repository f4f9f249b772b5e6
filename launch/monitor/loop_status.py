"""Numbers that belong to an event loop's thread, for the threads of the HTTP server.

What they are made from changes as peers come and go: a dict that grows while another thread walks
through it is an error. So the loop makes them itself, between two of its turns.
"""

import asyncio
import concurrent.futures
import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

_PATIENCE_S: Final = 2.0


class OnLoop:
    """Call it from any other thread; make it in the loop's."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._status: Callable[[], Mapping[str, Any]] | None = None
        self._silent: float | None = None  # since when nothing is answered

    def watch(self, status: Callable[[], Mapping[str, Any]]) -> None:
        """The port is there before the server that it tells of."""
        self._status = status

    def __call__(self) -> Mapping[str, Any]:
        """Without an answer: for how long there was none."""
        answer: concurrent.futures.Future[Mapping[str, Any]] = concurrent.futures.Future()
        began = time.monotonic()
        with contextlib.suppress(TimeoutError, RuntimeError):  # RuntimeError: the loop has ended
            self._loop.call_soon_threadsafe(self._make, answer)
            found = answer.result(_PATIENCE_S)
            self._silent = None
            return found
        self._silent = began if self._silent is None else self._silent
        return {"silent_s": time.monotonic() - self._silent}

    def _make(self, answer: concurrent.futures.Future[Mapping[str, Any]]) -> None:
        try:
            answer.set_result(self._status() if self._status is not None else {})
        except Exception as error:  # noqa: BLE001 (the loop must go on; the asker is told)
            answer.set_exception(error)
