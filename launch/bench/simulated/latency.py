"""A histogram of durations: small for any range, and mergeable over processes."""

import math
from collections import Counter
from collections.abc import Mapping

_SHORTEST_S = 1e-5
_PER_E = 20  # steps of 5 %: a quantile is right within that


class Latencies:
    """Counts durations in buckets of 5 %: bucket n ends at e**(n/20) times 10 microseconds."""

    def __init__(self, counts: Mapping[int, int] | None = None) -> None:
        self.counts: Counter[int] = Counter(counts)

    def add(self, seconds: float) -> None:
        self.counts[math.ceil(_PER_E * math.log(max(1.0, seconds / _SHORTEST_S)))] += 1

    def merge(self, counts: Mapping[str, int]) -> None:
        """Adds the counts of another process's report, whose keys JSON turned into strings."""
        for step, count in counts.items():
            self.counts[int(step)] += count

    def quantile(self, part: float) -> float:
        """Returns the time within which this share ended; NaN = nothing was counted."""
        left = part * self.counts.total()
        for step, count in sorted(self.counts.items()):
            left -= count
            if left <= 0:
                return _SHORTEST_S * math.exp(step / _PER_E)
        return math.nan
