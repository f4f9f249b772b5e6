"""Logs and counts environments that had to be restarted, and limits them per hour."""

import logging
import time
from collections import deque

from headrace.actors.envs.convert import EnvError
from headrace.actors.stepping.stepper import EnvFailure

log = logging.getLogger(__name__)

_HOUR_S = 3600.0


class CrashBudget:
    """Counts one sampler's restarted environments; raises EnvError when the budget is spent."""

    def __init__(self, name: str, *, per_hour: int) -> None:
        self._name = name
        self._per_hour = per_hour
        self._times: deque[float] = deque()  # of failures within the last hour
        self._told: set[tuple[str, str]] = set()  # kinds whose traceback was shown
        self.count: dict[str, int] = {}  # by where

    def spend(self, failure: EnvFailure, *, now: float | None = None) -> None:
        now = time.monotonic() if now is None else now
        self.count[failure.where] = self.count.get(failure.where, 0) + 1
        self._say(failure)
        self._times.append(now)
        while self._times[0] <= now - _HOUR_S:
            self._times.popleft()
        if len(self._times) > self._per_hour:
            raise EnvError(
                f"{self._name} failed {len(self._times)} times within an hour, more than"
                f" actor.crashes_per_hour = {self._per_hour}; the last time: {_line(failure)}"
            )

    def _say(self, failure: EnvFailure) -> None:
        """Logs the whole traceback once for each kind of failure, one line for each repetition."""
        text = failure.text.rstrip()
        kind = (failure.where, text.rpartition("\n")[2])
        values = failure.where == "values"
        became = "gave what nobody can learn from" if values else "failed and is restarted"
        new = "\n" in text and kind not in self._told and len(self._told) < 100
        if new:
            self._told.add(kind)
        # It is of another process, and no exception here: log_lines.py puts it in the line.
        log.error(
            "%s %s: %s",
            self._name,
            became,
            _line(failure),
            extra={"traceback": text if new else ""},
        )


def _line(failure: EnvFailure) -> str:
    if failure.where == "values":
        return f"environment {failure.env}, {failure.text}"
    # A traceback says it at its end; where there is none, the stack comes after the words.
    lines = failure.text.strip().splitlines()
    words = lines[0 if failure.where in ("time-out", "death") else -1]
    return (
        f"{failure.where}, environment {failure.env}, seed {failure.seed},"
        f" after {failure.steps} steps: {words}"
    )
