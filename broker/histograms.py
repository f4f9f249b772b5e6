"""Histograms that are cheap to count: read at a scrape, or sent along with a beat. Also a sum that
a scrape reads while another thread counts."""

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final

from prometheus_client.core import HistogramMetricFamily

# Edges of what the samplers measure and the broker adds up: both must use the same.
ACK_S: Final = tuple(0.005 * 2**n for n in range(14))
STEP_S: Final = tuple(0.00005 * 2**n for n in range(14))
# A move in the ledger takes microseconds: a sum that is not 0 after 20 looks is wrong.
_LOOKS: Final = 20
_PAUSE_S: Final = 0.002


class Buckets:
    """Counts values by size: a value belongs to the first of the ascending `edges` not below it."""

    __slots__ = ("counts", "edges", "total")

    def __init__(self, edges: Sequence[float]) -> None:
        self.edges = tuple(edges)
        self.counts = [0] * (len(self.edges) + 1)  # the last is beyond every edge
        self.total = 0.0  # of the values

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.edges, value)] += 1
        self.total += value

    def figures(self, name: str) -> dict[str, float]:
        """Returns the counts that are not 0, for a beat, as numbers that only grow."""
        counts = {f"{name}_{at}": float(n) for at, n in enumerate(self.counts) if n}
        return {**counts, f"{name}_sum": self.total} if counts else {}


def names(name: str, edges: Sequence[float]) -> tuple[str, ...]:
    """Returns every name that `figures` may hold."""
    return (*(f"{name}_{at}" for at in range(len(edges) + 1)), f"{name}_sum")


def cumulative(edges: Sequence[float], counts: Sequence[float]) -> list[tuple[str, float]]:
    """Returns counts as Prometheus wants them: for each edge, how many values are at most that."""
    out, below = [], 0.0
    for edge, count in zip((*edges, float("inf")), counts, strict=True):
        below += count
        out.append(("+Inf" if edge == float("inf") else str(float(edge)), below))
    return out


def histogram(name: str, words: str, counted: Buckets) -> HistogramMetricFamily:
    """Returns what was counted as a metric."""
    made = cumulative(counted.edges, list(counted.counts))
    return HistogramMetricFamily(name, words, buckets=made, sum_value=counted.total)


def settled_sum(look: Callable[[], int]) -> int:
    """Returns a sum that must be 0, re-read for up to 40 ms before another number is reported: a
    scrape runs in another thread and can fall between two counter updates."""
    for _ in range(_LOOKS):
        found = look()
        if not found:
            return 0
        time.sleep(_PAUSE_S)
    return found
