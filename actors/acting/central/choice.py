"""Chooses the better of two ways by measurement; pure, the clock is handed in.

Every two minutes both ways are tried, by all processes of a machine in the same seconds: how good
a way is depends on which way the others go, and who is quicker may take the core that a learner
needs. What counts are the rows done in the second half of a trial. The clock that all go by is the
machine's. First the act process tries its threads, while all samplers ask it; then the samplers try
to do without it.

    second  0            2            4                6                12        18
            |all threads |one thread  |the better of the two ..
            |samplers ask the act process              |they still do   |not      |the better ..
"""

from typing import Final

EVERY_S: Final = 120.0
# When a trial begins, and how long each of its ways lasts.
THREADS: Final = (0.0, 2.0)
PLACES: Final = (6.0, 6.0)
_BETTER: Final = 1.1  # so many times the rows of the second way are a reason for the first


class Choice:
    """Remembers how many rows were done in the last trial, by way."""

    def __init__(self, trial: tuple[float, float]) -> None:
        self._begins, self._lasts = trial
        self._rows = {True: 0, False: 0}  # True = of the first way
        self._period = {True: -1, False: -1}  # the trial that they are of

    def first(self, now: float) -> bool:
        """Says whether to go the first way now."""
        since = now % EVERY_S - self._begins
        if since < 2 * self._lasts:
            return since < self._lasts
        return self._rows[True] > _BETTER * self._rows[False]

    def did(self, first: bool, rows: int, now: float) -> None:
        """Counts rows that were done one way, if it is being tried."""
        period, since = divmod(now, EVERY_S)
        since -= self._begins + (0.0 if first else self._lasts)
        if not self._lasts / 2 <= since < self._lasts:
            return
        if self._period[first] != period:
            self._period[first], self._rows[first] = int(period), 0
        self._rows[first] += rows
