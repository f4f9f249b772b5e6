"""The adaptive wait that batches more environments into one call of the network, pure.

A call for n rows costs fixed + n * each. Two calls made one save `fixed`, which is worth a wait
only while the process is busy: then it waits up to `fixed`, at most `limit_s`.
Below half load the wait is 0: it would only delay the environments.
"""

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

    @property
    def fixed_s(self) -> float:
        """Returns the seconds of a call before its first row, by a line through (rows, seconds)."""
        spread = self._square - self._rows**2
        if spread < 0.25:  # all calls are of one size: nothing to tell the two costs apart by
            return 0.0
        each = (self._product - self._rows * self._seconds) / spread
        return max(0.0, self._seconds - each * self._rows)

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
