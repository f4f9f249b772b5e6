"""The adaptive wait that batches more environments into one call of the network.

A call for n rows costs fixed + n * each. Two calls made one save `fixed`, which is worth a wait
only while the process is busy: then it waits up to `fixed`, at most `limit_s`.
Below half load the wait is 0: it would only delay the environments.
"""

import asyncio
import time

_WEIGHT = 0.02  # of a new measurement: about the last fifty calls count
_SPARE = 0.5  # busy for less of its time than this, the process has time to spare
_SHORTEST_S = 0.0005  # the event loop counts in milliseconds


class BatchingWait:
    """Learns from every call of the network how long the next one should wait."""

    def __init__(self, *, limit_s: float) -> None:
        self._limit_s = limit_s
        self._busy = 0.0  # share of the time not spent waiting
        self._rows = self._seconds = self._square = self._product = 0.0  # running means
        self._calls = 0
        self._until = 0.0  # the end of the wait for more rows; 0 = there is none
        self._last_call = (0.0, 0.0)  # its end, and how long all waits were by then

    @property
    def fixed_s(self) -> float:
        """Returns the seconds of a call before its first row, by a line through (rows, seconds)."""
        spread = self._square - self._rows**2
        if spread < 0.25:  # all calls are of one size: nothing to tell the two costs apart by
            return 0.0
        each = (self._product - self._rows * self._seconds) / spread
        return max(0.0, self._seconds - each * self._rows)

    def called(self, rows: int, began: float, ended: float, waiting_s: float) -> None:
        """Records a call of the network; until then all waits of the process were `waiting_s`."""
        before, waited = self._last_call
        self._last_call = (ended, waiting_s)
        self.record_call(
            rows=rows, seconds=ended - began, waited=waiting_s - waited, elapsed=ended - before
        )

    def record_call(self, *, rows: int, seconds: float, waited: float, elapsed: float) -> None:
        """Records a call that took `seconds`; since the call before, `elapsed` seconds passed, of
        which the process was idle for `waited`."""
        self._calls += 1
        weight = max(_WEIGHT, 1.0 / self._calls)
        self._rows += weight * (rows - self._rows)
        self._seconds += weight * (seconds - self._seconds)
        self._square += weight * (rows * rows - self._square)
        self._product += weight * (rows * seconds - self._product)
        if elapsed > 0:
            self._busy += weight * (1.0 - min(1.0, waited / elapsed) - self._busy)

    def wait_s(self, *, running: int) -> float:
        """Returns the seconds to wait when some groups are ready and `running` are not."""
        if not running or self._busy < _SPARE:
            return 0.0
        wait = min(self._limit_s, self.fixed_s) * (self._busy - _SPARE) / (1 - _SPARE)
        return wait if wait >= _SHORTEST_S else 0.0

    async def for_rows(self, news: asyncio.Event, *, running: int) -> float:
        """Waits for news, a little, while groups are `running`; returns for how long. 0 = the
        network is to be called now."""
        now = time.monotonic()
        if not self._until:
            wait = self.wait_s(running=running)
            if not wait:
                return 0.0
            self._until = now + wait
        left = self._until - now
        if left <= 0 or not running:
            self._until = 0.0
            return 0.0
        news.clear()
        timer = asyncio.get_running_loop().call_later(left, news.set)
        await news.wait()
        timer.cancel()
        return time.monotonic() - now
