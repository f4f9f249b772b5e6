"""A status that belongs to an event loop's thread, read by the threads of the HTTP server.

Its sources change as peers come and go: iterating over a dict in one thread while another adds to
it is an error. So the loop itself builds the status, between two of its turns.
"""

import asyncio
import concurrent.futures
import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

_PATIENCE_S: Final = 2.0


class LoopStatus:
    """Fetches a status from an event loop. Made in the loop's thread, called from any other."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._status: Callable[[], Mapping[str, Any]] | None = None
        self._silent: float | None = None  # since when there is no answer; None = there is one

    def set_source(self, status: Callable[[], Mapping[str, Any]]) -> None:
        """Sets the source of the status later, because the port opens before its server exists."""
        self._status = status

    def __call__(self) -> Mapping[str, Any]:
        """Returns the loop's status; without an answer, the seconds of silence as `silent_s`."""
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
