"""Measures which share of the trained steps each quarter of the streams supplies. Pure."""

from collections.abc import Iterable
from typing import Final

from headrace.broker.ledger.records import Stream
from headrace.broker.quarter_shares import quarter_shares

# Seconds that a measurement takes: a young run is told early, each one takes twice as long as the
# one before, up to the last.
_FIRST_S: Final = 5.0
_LAST_S: Final = 60.0


class TrainedShares:
    """Compares, window by window, how much of what is trained the streams supply."""

    def __init__(self) -> None:
        self.quarters: tuple[float, ...] = ()  # of the latest window; () = not known
        self._before: dict[Stream, int] = {}  # what was trained of each when the window began
        self._window_s = _FIRST_S  # of the window that is running
        self._until = float("-inf")  # its end

    def update(self, streams: Iterable[Stream], now: float) -> None:
        """Takes a measurement when its window is over: of the streams that took part in all of
        it."""
        if now < self._until:
            return
        joined = [stream for stream in streams if stream.joined]
        grown = [s.trained_steps - self._before[s] for s in joined if s in self._before]
        self.quarters = quarter_shares(grown)
        self._before = {stream: stream.trained_steps for stream in joined}
        if self.quarters:
            self._window_s = min(2 * self._window_s, _LAST_S)
        self._until = now + self._window_s
