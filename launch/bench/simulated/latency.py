"""How long things took: counts by length, small whatever happens, and added up over processes."""

import math
from collections import Counter
from collections.abc import Mapping

_SHORTEST_S = 1e-5
_PER_E = 20  # steps of 5 %: a quantile is right within that


class Latencies:
    """Seconds by the power of e**(1/20) that they reach."""

    def __init__(self, counts: Mapping[int, int] | None = None) -> None:
        self.counts: Counter[int] = Counter(counts)

    def add(self, seconds: float) -> None:
        self.counts[math.ceil(_PER_E * math.log(max(1.0, seconds / _SHORTEST_S)))] += 1

    def merge(self, counts: Mapping[str, int]) -> None:
        """What another process wrote down: JSON knows only words as keys."""
        for step, count in counts.items():
            self.counts[int(step)] += count

    def quantile(self, part: float) -> float:
        """At least this part took no longer; not a number when nothing was counted."""
        left = part * self.counts.total()
        for step, count in sorted(self.counts.items()):
            left -= count
            if left <= 0:
                return _SHORTEST_S * math.exp(step / _PER_E)
        return math.nan
