"""Tells from the versions of weights that come in whether the line is slow. Pure."""

from typing import Final

# From here on only what changed is asked for: seconds that a version takes to come, or would take.
_SLOW_S: Final = 0.1


class SlowLine:
    """Measures one version after another."""

    def __init__(self) -> None:
        self._since = 0.0  # the version that comes in was asked for
        self._arrived = 0  # bytes of it so far

    def begin(self, now: float) -> None:
        """Notes that a version was asked for while none was on its way."""
        self._since, self._arrived = now, 0

    def add(self, nbytes: int) -> None:
        """Notes bytes that came."""
        self._arrived += nbytes

    def ended(self, size: int, now: float) -> bool:
        """Tells, of a version whose chunks of this size are here now, whether their bytes took
        long, or would have if all had come. The next one is on its way already."""
        whole_s = (now - self._since) * size / max(1, self._arrived)
        self.begin(now)
        return whole_s > _SLOW_S
