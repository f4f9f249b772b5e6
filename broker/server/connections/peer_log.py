"""Log lines about peers at a limited rate; dropped messages are always counted."""

import logging
import time

from headrace.broker.line_limiter import LineLimiter
from headrace.broker.server.connections.counters import Counters
from headrace.broker.server.connections.rate_limits import RateLimits

log = logging.getLogger(__name__)


class PeerLog:
    """Counts dropped messages and logs them, no faster than a log can bear."""

    def __init__(self, limits: RateLimits, counters: Counters) -> None:
        self._limits = limits
        self._counters = counters
        self._repeated = LineLimiter()  # of lines that are logged once a minute

    def count(self, reason: str) -> None:
        """Counts a message dropped for that reason; no log, as many of the same may follow."""
        self._counters.dropped[reason] += 1

    def dropped(self, reason: str, words: str, *others: object) -> None:
        """Counts a message dropped for that reason, and logs why."""
        self.count(reason)
        self.log(words, *others)

    def log(self, words: str, *others: object, level: int = logging.WARNING) -> None:
        """Logs a line, or counts it as suppressed when there were too many."""
        if self._limits.may_log(time.monotonic()):
            log.log(level, words, *others)
        else:
            self._counters.spared_lines += 1

    def once_a_minute(self, about: str, words: str, *others: object) -> None:
        """Logs one line a minute about this; the others are counted as suppressed."""
        if self._repeated.allows(about, time.monotonic()):
            self.log(words, *others)
        else:
            self._counters.spared_lines += 1
