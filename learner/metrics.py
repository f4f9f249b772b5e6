"""All learner metrics, per rank, written once a step."""

import contextlib
import time
from collections.abc import Iterator, Sequence

import torch
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace.broker.histograms import settled_sum
from headrace.learner.batches.receiver import UnrollReceiver
from headrace.learner.batches.step_ages import UnrollAge
from headrace.learner.progress import Progress

PHASES = ("wait", "upload", "forward", "backward", "optimise", "publish", "checkpoint", "others")
_LAG_BUCKETS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
_MOST_OWN = 20  # figures of a loss of the user's own that get a series


class LearnerMetrics:
    """Holds the metrics of one rank."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

        def counter(name: str, words: str, *labels: str) -> Counter:
            return Counter(f"headrace_learner_{name}", words, labels, registry=registry)

        def gauge(name: str, words: str, *labels: str) -> Gauge:
            return Gauge(f"headrace_learner_{name}", words, labels, registry=registry)

        self.steps = counter("steps", "Optimiser steps")
        self.samples = counter("samples", "Live steps trained on, all ranks")
        self.nonfinite = counter("nonfinite", "Steps skipped", "what")
        self.nonfinite.labels("gradient")
        self.checkpoints = counter("checkpoint", "Checkpoints written", "result")
        phase = counter("phase_seconds", "Where the time went", "phase")
        self.phase = {name: phase.labels(name) for name in PHASES}
        for result in ("ok", "failed"):
            self.checkpoints.labels(result)
        loss = gauge("loss", "The loss's parts, before their coefficients", "part")
        kl = gauge("kl_nats", "KL divergence of the policy from another one", "other")
        share = gauge(
            "step_share", "Of the trained steps, those that the policy left behind", "how"
        )
        coefficient = gauge("coefficient", "Settings of the loss, as they are used", "name")
        self._stats = {  # as the losses call them: the metric, and its label
            "policy_loss": (loss, "policy"),
            "value_loss": (loss, "value"),
            "entropy": (gauge("entropy_nats", "Of the policy, mean over steps"), ""),
            "kl": (kl, "behaviour"),
            "target_kl": (kl, "target"),
            "rho_mean": (gauge("importance_ratio", "Policy / behaviour, mean over steps"), ""),
            "clip_fraction": (share, "clipped"),
            "drift_fraction": (share, "drifted"),
            "explained_variance": (
                gauge("explained_variance", "Of the value targets, by the values; 1 = all"),
                "",
            ),
            "grad_norm": (gauge("grad_norm", "Before clipping"), ""),
            "lr": (gauge("lr", "Step size"), ""),
            **{name: (coefficient, name) for name in ("entropy_coef", "clip", "kl_coef")},
        }
        self.own = gauge("own_loss", "Figures that the user's own loss gives beside these", "name")
        self._own_names: set[str] = set()
        self.reuse = gauge("reuse", "Uses of an unroll, on average")
        self.version = gauge("version", "Trained up to")
        self.mean_return = gauge(
            "episode_return_mean", "Of each environment's latest training episodes"
        )
        self.mean_length = gauge("episode_length_mean", "Of the same episodes, agent steps")
        self.metric = gauge(
            "metric",
            "Of env.metrics: mean of the latest episodes' last values; stats of steps; the last",
            "name",
            "stat",
        )
        self.gap = gauge("logprob_gap", "Recorded against recomputed for the same version, largest")
        self.queue = gauge("batch_queue_fragments", "Unrolls received and not trained")
        self.step_lag = gauge(
            "step_lag_versions", "Age of trained steps, all ranks: acting to training", "stat"
        )
        self.last_step = gauge("last_step_timestamp_seconds", "When it ended")
        self.checkpoint_interval = gauge("checkpoint_interval_seconds", "By the run")
        self.rank = gauge("rank", "Of this process")
        self.world = gauge("world", "Ranks that train together")
        self.last_checkpoint = gauge(
            "last_checkpoint_timestamp_seconds", "When it was written, or training began"
        )
        self.step_seconds = Histogram(
            "headrace_learner_step_seconds",
            "Upload to optimiser step",
            buckets=[0.0005 * 2**n for n in range(14)],
            registry=registry,
        )
        self.lag = Histogram(
            "headrace_learner_lag_versions",
            "Age: versions between acting and training, by unroll of this rank",
            buckets=_LAG_BUCKETS,
            registry=registry,
        )

    def watch(self, feed: UnrollReceiver) -> None:
        """Registers the receiver's metrics: it is made later than the metrics port."""
        self._registry.register(LeaseMetrics(feed))

    def set_constants(self, rank: int, world: int, checkpoint_every_s: float) -> None:
        """Sets what does not change; the first checkpoint is due an interval from now."""
        self.rank.set(rank)
        self.world.set(world)
        self.checkpoint_interval.set(checkpoint_every_s)
        self.last_checkpoint.set(time.time())

    @contextlib.contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Counts the seconds inside; not if an exception comes out."""
        before = time.perf_counter()
        yield
        self.phase[phase].inc(time.perf_counter() - before)

    def phase_seconds(self) -> dict[str, float]:
        """Returns where this process's time went."""
        return {name: round(_value(counter), 3) for name, counter in self.phase.items()}

    def _own_stat(self, name: str) -> tuple[Gauge, str] | None:
        """Returns the gauge of a figure of the user's own loss; None = there are too many."""
        if len(self._own_names) < _MOST_OWN:
            self._own_names.add(name)
        return (self.own, name) if name in self._own_names else None

    def count_step(self, steps: int, ages: Sequence[UnrollAge], *, seconds: float) -> None:
        """Counts a trained batch: live steps of all ranks; ages of this rank's unrolls."""
        self.steps.inc()
        self.samples.inc(steps)
        self.step_seconds.observe(seconds)
        for lag, *_ in ages:
            self.lag.observe(lag)

    def show(
        self,
        progress: Progress,
        stats: dict[str, float],
        ages: dict[str, float],
        steps: dict[str, float],
        now: float,
    ) -> None:
        """Sets the gauges that only a person reads; a few times a second is enough. `ages`: of the
        steps trained since they were set last; {} = there were none. `steps`: of env.metrics, by
        their columns."""
        for name, age in ages.items():
            self.step_lag.labels(name.removeprefix("lag_")).set(age)
        for name, value in stats.items():
            if (known := self._stats.get(name) or self._own_stat(name)) is None:
                continue
            metric, label = known
            (metric.labels(label) if label else metric).set(value)
        self.version.set(progress.version)
        self.reuse.set(progress.reuse())
        self.last_step.set(now)
        mean = progress.mean_return()
        if mean is not None:
            self.mean_return.set(mean)
        if progress.score.mean_length is not None:
            self.mean_length.set(progress.score.mean_length)
        for name in progress.metrics.names:
            if name in progress.metrics.means:
                self.metric.labels(name, "episode").set(progress.metrics.means[name])
            for stat in ("mean", "min", "max", "count", "last"):
                if f"metric.{name}.{stat}" in steps:
                    self.metric.labels(name, stat).set(steps[f"metric.{name}.{stat}"])


class LeaseMetrics(Collector):
    """Counts what became of the unrolls delivered to this rank. Read at a scrape."""

    def __init__(self, feed: UnrollReceiver) -> None:
        self._feed = feed

    def describe(self) -> Iterator[Metric]:
        """Describes nothing: nothing may be asked before the receiver has its connection."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        ends = self._feed.ends
        fragments = CounterMetricFamily(
            "headrace_learner_fragments",
            "Unrolls delivered, by what came of it",
            labels=["outcome"],
        )
        for outcome, count in (
            ("trained", ends.trained_unrolls),
            ("rejected", ends.objections.total()),
            ("abandoned", ends.given_back),
            ("duplicate", ends.duplicates),
        ):
            fragments.add_metric([outcome], count)
        yield fragments
        rejected = CounterMetricFamily(
            "headrace_learner_rejected_fragments",
            "Unrolls that could not be used, by reason",
            labels=["reason"],
        )
        for reason, count in ends.objections.items():
            rejected.add_metric([reason], count)
        yield rejected
        yield CounterMetricFamily(
            "headrace_learner_reconnects", "Connections begun anew", value=ends.reconnects
        )
        if torch.cuda.is_available():
            yield GaugeMetricFamily(
                "headrace_learner_gpu_memory_bytes",
                "Held by tensors on its GPU",
                value=torch.cuda.memory_allocated(),
            )
        yield CounterMetricFamily(
            "headrace_learner_delivered_fragments",
            "Unrolls delivered, copies left out",
            value=ends.delivered,
        )
        for name, words, value in (
            ("held_fragments", "Unrolls delivered and not trained", ends.held),
            (
                "ledger_unaccounted",
                "Unrolls lost by our own counting",
                settled_sum(ends.unaccounted),
            ),
        ):
            yield GaugeMetricFamily(f"headrace_learner_{name}", words, value=value)


def _value(counter: Counter) -> float:
    samples = (sample for family in counter.collect() for sample in family.samples)
    return float(next(sample.value for sample in samples if sample.name.endswith("_total")))
