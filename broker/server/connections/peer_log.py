"""Messages that were dropped: always counted, and logged at a limited rate."""

import logging
import time

from headrace.broker.server.connections.counters import Counters
from headrace.broker.server.connections.rate_limits import RateLimits

log = logging.getLogger(__name__)


class PeerLog:
    """Counts dropped messages and logs them, no faster than a log can bear."""

    def __init__(self, limits: RateLimits, counters: Counters) -> None:
        self._limits = limits
        self._counters = counters

    def count(self, reason: str) -> None:
        """Counts a message dropped for that reason; no log, as many of the same may follow."""
        self._counters.errors[reason] += 1

    def dropped(self, reason: str, words: str, *others: object) -> None:
        """Counts a message dropped for that reason, and logs why."""
        self.count(reason)
        self.log(words, *others)

    def log(self, words: str, *others: object, level: int = logging.WARNING) -> None:
        """Logs a line, or counts it as suppressed when there were too many."""
        if self._limits.may_log(time.monotonic()):
            log.log(level, words, *others)
        else:
            self._counters.unsaid += 1
