"""Measures how long the unrolls of a run take, and says when one is overdue. Pure."""

# What one more unroll weighs in the mean.
_WEIGHT = 0.01
# Seconds after which the longest time counts only half.
_HALF_LIFE_S = 600.0
# An unroll is overdue after this many times the longest time, or the mean.
_TIMES = 4
# Leases that one is waited for at least; and at most, unless nearly all take as long as that.
_LEAST_LEASES, _MOST_LEASES = 5, 30


class UnrollDurations:
    """Tracks how long unrolls run: from the moment when one may start until it arrives."""

    def __init__(self) -> None:
        self.mean_s = 0.0  # of all, newer ones more; 0 = none has arrived
        self._longest_s = 0.0  # decays as time passes
        self._at = 0.0  # the moment that `_longest_s` is for
        self._none = True  # none has arrived yet
        self._given_up = 0  # unrolls that were overdue before any arrived

    def add(self, seconds: float, now: float) -> None:
        weight = 1.0 if self._none else _WEIGHT
        self.mean_s += weight * (seconds - self.mean_s)
        if now > self._at:
            self._longest_s *= 0.5 ** ((now - self._at) / _HALF_LIFE_S)
            self._at = now
        self._longest_s = max(self._longest_s, seconds)
        self._none = False

    @property
    def usual_s(self) -> float:
        """Returns the seconds that most unrolls keep within."""
        return 2 * self.mean_s

    def gave_up(self) -> None:
        """Counts an unroll that was overdue. While none has arrived to compare with, the next is
        given half the time, so that the run begins even when many hold a place without using it."""
        self._given_up += self._none

    def overdue_s(self, lease_s: float) -> float:
        """Returns the seconds that an unroll may run before its place goes to others. A stream that
        delivers a little later each time must not be waited for without end, so beyond the upper
        bound only the mean of all unrolls counts."""
        least, most = _LEAST_LEASES * lease_s, _MOST_LEASES * lease_s
        if self._none:
            return max(least, most * 0.5**self._given_up)
        usual = max(least, _TIMES * self._longest_s)
        return max(min(usual, most), _TIMES * self.mean_s)
