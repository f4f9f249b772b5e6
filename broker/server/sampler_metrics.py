"""Makes the metrics of all samplers together."""

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from prometheus_client.core import GaugeMetricFamily, Metric

from headrace.broker.sampler_figures import METRICS, SamplerTotals

_PREFIX: Final = "headrace_samplers"


class Sampler(Protocol):
    """Stands for a peer with figures of its own."""

    stats: dict[str, float]


def summed(sampler_totals: SamplerTotals, here: Sequence[Sampler]) -> Iterator[Metric]:
    """Yields the metrics of all samplers: counters never fall; gauges are of those here now."""
    totals = dict(sampler_totals.totals)
    for metric in METRICS:
        yield metric.family(_PREFIX, totals)
    rating = GaugeMetricFamily(
        f"{_PREFIX}_league_rating",
        "Elo rating of the policy above an opponent, by the newer games; low, high: 95 % interval",
        labels=["opponent", "bound"],
    )
    for row in sampler_totals.league.shown():
        for bound in ("low", "rating", "high"):
            rating.add_metric([row["who"], bound], row[bound])
    yield rating
    for name, words, key in (
        ("unacked_fragments", "Not acknowledged", "unacked"),
        ("ledger_unaccounted", "Unrolls lost by their own counting", "unaccounted"),
    ):
        value = sum(sampler.stats.get(key, 0.0) for sampler in here)
        yield GaugeMetricFamily(f"{_PREFIX}_{name}", words, value=value)
