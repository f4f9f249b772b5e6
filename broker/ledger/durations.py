"""Measures how long the unrolls of a run take, and says when one is overdue. Pure."""

# Of the mean: what one more unroll weighs.
_WEIGHT = 0.01
# Seconds after which the longest one counts half.
_HALF_LIFE_S = 600.0
# An unroll that takes so many times the longest, or the mean, is not worth waiting for.
_TIMES = 4
# Leases that one is waited for at least; and at most, unless nearly all take as long.
_LEAST_LEASES, _MOST_LEASES = 5, 30


class Durations:
    """One run's, from the moment when an unroll may start until it arrives."""

    def __init__(self) -> None:
        self._mean_s = 0.0
        self._longest_s = 0.0  # less and less, as time passes
        self._at = 0.0  # when `_longest_s` was true
        self._none = True  # none has arrived yet
        self._given_up = 0  # unrolls that were overdue before any arrived

    def add(self, seconds: float, now: float) -> None:
        weight = 1.0 if self._none else _WEIGHT
        self._mean_s += weight * (seconds - self._mean_s)
        if now > self._at:
            self._longest_s *= 0.5 ** ((now - self._at) / _HALF_LIFE_S)
            self._at = now
        self._longest_s = max(self._longest_s, seconds)
        self._none = False

    @property
    def usual_s(self) -> float:
        """Returns what most of them keep within."""
        return 2 * self._mean_s

    def gave_up(self) -> None:
        """One was overdue. While there is nothing to compare with, the next is given half the time:
        however many hold a place for nothing, the run begins."""
        self._given_up += self._none

    def overdue_s(self, lease_s: float) -> float:
        """How long an unroll may run before its place is for others. One that delivers a little
        later each time must not be waited for ever longer, so only the mean of all is believed
        beyond all bounds."""
        least, most = _LEAST_LEASES * lease_s, _MOST_LEASES * lease_s
        if self._none:
            return max(least, most * 0.5**self._given_up)
        usual = max(least, _TIMES * self._longest_s)
        return max(min(usual, most), _TIMES * self._mean_s)
