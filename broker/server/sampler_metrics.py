"""Makes the metrics of all samplers together."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Protocol

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from headrace.broker import histograms
from headrace.broker.histograms import cumulative
from headrace.broker.sampler_figures import FAILURES, OUTCOMES, WAITS
from headrace.broker.server.sampler_totals import SamplerTotals

_PREFIX: Final = "headrace_samplers"


class Sampler(Protocol):
    """Stands for a peer with figures of its own."""

    stats: dict[str, float]


def summed(sampler_totals: SamplerTotals, here: Sequence[Sampler]) -> Iterator[Metric]:
    """Yields the metrics of all samplers: counters never fall; gauges are of those here now."""
    totals = dict(sampler_totals.totals)
    for name, words, key in (
        ("env_steps", "Agent steps, dead ones left out", "env_steps"),
        ("episodes", "Episodes that ended", "episodes"),
        ("generated_fragments", "Unrolls finished", "generated"),
        ("env_seconds", "Inside the environments", "env_s"),
        ("inference_seconds", "Inside the network", "inference_s"),
        ("inference_calls", "Of the network", "calls"),
        ("inference_rows", "Observations it was called for", "rows"),
        ("reconnects", "Connections begun anew", "reconnects"),
    ):
        yield CounterMetricFamily(f"{_PREFIX}_{name}", words, value=totals[key])
    for name, words, label, keys in (
        ("wait_seconds", "Waiting, by what for", "phase", {p: f"wait_{p}_s" for p in WAITS}),
        (
            "fragments",
            "Unrolls by acknowledged outcome",
            "outcome",
            {outcome: f"out_{outcome}" for outcome in OUTCOMES},
        ),
        (
            "env_failures",
            "Environments restarted, by why",
            "where",
            {where: f"fail_{where}" for where in FAILURES},
        ),
        ("fragment_bytes", "Unroll bytes by stage", "stage", {"raw": "raw_bytes", "wire": "bytes"}),
    ):
        yield _labelled(f"{_PREFIX}_{name}", words, label, keys, totals)
    for name, words, key in (
        ("unacked_fragments", "Not acknowledged", "unacked"),
        ("ledger_unaccounted", "Unrolls lost by their own counting", "unaccounted"),
    ):
        value = sum(sampler.stats.get(key, 0.0) for sampler in here)
        yield GaugeMetricFamily(f"{_PREFIX}_{name}", words, value=value)
    for name, words, key, edges in (
        ("ack_seconds", "From sending an unroll to its acknowledgement", "ack", histograms.ACK_S),
        (
            "env_step_seconds",
            "Of an environment's step, mean of an unroll",
            "step",
            histograms.STEP_S,
        ),
    ):
        yield HistogramMetricFamily(
            f"{_PREFIX}_{name}",
            words,
            buckets=cumulative(edges, sampler_totals.counts(key, edges)),
            sum_value=totals[f"{key}_sum"],
        )


def _labelled(
    name: str, words: str, label: str, keys: Mapping[str, str], totals: Mapping[str, float]
) -> CounterMetricFamily:
    family = CounterMetricFamily(name, words, labels=[label])
    for value, key in keys.items():
        family.add_metric([value], totals[key])
    return family
