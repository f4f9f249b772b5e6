"""Every sampler metric, declared once."""

import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from broker.actor_end import ActorEnd
from broker.wire import Outcome


class ActorMetrics(Collector):
    """One per sampler process. Written once an unroll, never once a step."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.env_steps = 0
        self.episodes = 0
        self.raw_bytes = 0
        self._end: ActorEnd | None = None
        self.weights_version = Gauge(
            "headrace_actor_weights_version", "Version it acts with", registry=registry
        )
        self.weights_version.set(-1)
        self.last_unroll = Gauge(
            "headrace_actor_last_fragment_timestamp_seconds", "When it sent one", registry=registry
        )
        self._wait = Counter(
            "headrace_actor_wait_seconds", "Waiting, by what for", ["phase"], registry=registry
        )
        self._waits = {phase: self._wait.labels(phase) for phase in ("credit", "weights")}
        registry.register(self)

    def sent(self, steps: int, ended: int, nbytes: int, end: ActorEnd) -> None:
        self._end = end
        self.env_steps += steps
        self.episodes += ended
        self.raw_bytes += nbytes
        self.last_unroll.set(time.time())
        end.stats = {
            "env_steps": float(self.env_steps),
            "episodes": float(self.episodes),
            "generated": float(end.outbox.generated),
            "unacked": float(len(end.outbox)),
            "bytes": float(end.bytes_sent),
        }

    def waited(self, phase: str, seconds: float) -> None:
        self._waits[phase].inc(seconds)

    def collect(self) -> Iterator[Metric]:
        for name, words, value in (
            ("env_steps", "Agent steps, dead ones left out", self.env_steps),
            ("episodes", "Episodes that ended", self.episodes),
        ):
            yield CounterMetricFamily(f"headrace_actor_{name}", words, value=value)
        stage = CounterMetricFamily(
            "headrace_actor_fragment_bytes", "Unroll bytes by stage", labels=["stage"]
        )
        stage.add_metric(["raw"], self.raw_bytes)
        stage.add_metric(["wire"], self._end.bytes_sent if self._end else 0)
        yield stage
        outcomes = CounterMetricFamily(
            "headrace_actor_fragments", "Unrolls by acknowledged outcome", labels=["outcome"]
        )
        for outcome in Outcome:
            value = self._end.outbox.outcomes[outcome] if self._end else 0
            outcomes.add_metric([outcome.name.lower()], value)
        yield outcomes
        yield CounterMetricFamily(
            "headrace_actor_generated_fragments", "Unrolls finished", value=self._stat("generated")
        )
        yield GaugeMetricFamily(
            "headrace_actor_unacked_fragments", "Not acknowledged", value=self._stat("unacked")
        )

    def _stat(self, name: str) -> float:
        return self._end.stats.get(name, 0.0) if self._end else 0.0
