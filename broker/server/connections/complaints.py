"""What peers make the broker say: counted always, said as often as a log can bear."""

import logging
import time

from headrace.broker.server.connections.admission import Door
from headrace.broker.server.connections.counters import Counters

log = logging.getLogger(__name__)


class Complaints:
    """One broker's."""

    def __init__(self, door: Door, counters: Counters) -> None:
        self._door = door
        self._counters = counters

    def count(self, reason: str) -> None:
        """A message was dropped for that reason; many of the same may follow, so without a word."""
        self._counters.errors[reason] += 1

    def about(self, reason: str, words: str, *others: object) -> None:
        """A message was dropped for that reason."""
        self.count(reason)
        self.say(words, *others)

    def say(self, words: str, *others: object, level: int = logging.WARNING) -> None:
        if self._door.loud(time.monotonic()):
            log.log(level, words, *others)
        else:
            self._counters.unsaid += 1
