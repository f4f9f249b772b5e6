"""Counts by size, cheaper than a metric: read at a scrape, or sent along with a beat. And what a
scrape reads while another thread counts."""

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final

from prometheus_client.core import HistogramMetricFamily

# What the samplers measure, and the broker adds up: the two must agree on the edges.
ACK_S: Final = tuple(0.005 * 2**n for n in range(14))
STEP_S: Final = tuple(0.00005 * 2**n for n in range(14))
# A move in the ledger takes microseconds: a sum that is not 0 after all these looks is wrong.
_LOOKS: Final = 20
_PAUSE_S: Final = 0.002


class Buckets:
    """`edges` ascend; a value belongs to the first edge that is not below it."""

    __slots__ = ("counts", "edges", "total")

    def __init__(self, edges: Sequence[float]) -> None:
        self.edges = tuple(edges)
        self.counts = [0] * (len(self.edges) + 1)  # the last is beyond every edge
        self.total = 0.0  # of the values

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.edges, value)] += 1
        self.total += value

    def figures(self, name: str) -> dict[str, float]:
        """For a beat: those that are not 0, as numbers that only grow."""
        counts = {f"{name}_{at}": float(n) for at, n in enumerate(self.counts) if n}
        return {**counts, f"{name}_sum": self.total} if counts else {}


def names(name: str, edges: Sequence[float]) -> tuple[str, ...]:
    """What `figures` may hold."""
    return (*(f"{name}_{at}" for at in range(len(edges) + 1)), f"{name}_sum")


def cumulative(edges: Sequence[float], counts: Sequence[float]) -> list[tuple[str, float]]:
    """As Prometheus wants them: at most this, for each edge."""
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
    """Returns a sum that must be 0, looked at from another thread than the one that counts. A
    scrape can run between two of its counters: it reads again before it reports another number."""
    for _ in range(_LOOKS):
        found = look()
        if not found:
            return 0
        time.sleep(_PAUSE_S)
    return found
