"""The metrics of a sampler."""

import logging
import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace.actors.metric_sums import MetricSums
from headrace.actors.stepping.stepper import Stepper
from headrace.broker.histograms import STEP_S, Buckets, settled_sum
from headrace.broker.league_results import FIGURES
from headrace.broker.peers.sampler import SamplerEnd
from headrace.broker.sampler_figures import FAILURES, METRICS, WAITS

log = logging.getLogger(__name__)


class SamplerMetrics(Collector):
    """Counts what one sampler process does. Written once an unroll, never once a step."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.env_steps = 0
        self.episodes = 0
        self.raw_bytes = 0
        self.waits = dict.fromkeys(WAITS, 0.0)  # seconds, by what for
        self.waiting_s = 0.0  # all of them together
        self.calls = 0  # of the network
        self.rows = 0  # it was called for
        self.inference_s = 0.0
        self.replies_s = 0.0  # the part of it that ran in environments' own threads
        self._began = 0.0  # when sampling began; 0 = not yet
        self._stepper: Stepper | None = None
        self._end: SamplerEnd | None = None  # None until the sampler is put together
        self.weights_version = Gauge(
            "headrace_actor_weights_version", "Version it acts with", registry=registry
        )
        self.weights_version.set(-1)
        self.last_unroll = Gauge(
            "headrace_actor_last_fragment_timestamp_seconds", "When it sent one", registry=registry
        )
        self.weights_taken = Gauge(
            "headrace_actor_weights_timestamp_seconds", "When it took them", registry=registry
        )
        self.failures = dict.fromkeys(FAILURES, 0)  # environments restarted, by where
        self.steps = Buckets(STEP_S)  # seconds of an environment's step, mean of an unroll
        self._spent_before = (0.0, 0)  # inside the environments, and steps, at the last unroll
        self.games = dict.fromkeys(FIGURES, 0)  # with others of the league, by who and how
        self.unrecorded_steps = 0  # of agents, while another policy learned
        self.unusable_values = 0  # in info, of metrics that are asked for
        self._complained: set[str] = set()  # metrics of which the log has told that
        registry.register(self)

    def watch(self, end: SamplerEnd) -> None:
        self._end = end
        end.say = self.figures

    def sent(self, steps: int, ended: int, nbytes: int) -> None:
        """Counts an unroll that was sent."""
        self.env_steps += steps
        self.episodes += ended
        self.raw_bytes += nbytes
        self.last_unroll.set(time.time())
        self._measure_steps()

    def acts_with(self, version: int) -> None:
        self.weights_version.set(version)
        self.weights_taken.set(time.time())

    def figures(self) -> dict[str, float]:
        """Returns the figures that every beat brings to the broker. Zeros are left out: the broker
        gets a thousand beats a second."""
        return {name: value for name, value in self._figures().items() if value}

    def runs(self, stepper: Stepper) -> None:
        """Starts the clock: the environments begin."""
        self._stepper, self._began = stepper, time.monotonic()

    def _env_s(self) -> float:
        return float(self._stepper.frame.spent.sum()) if self._stepper is not None else 0.0

    def _measure_steps(self) -> None:
        """Records the mean seconds of a step since the last unroll; the time spent is known only
        for all environments together."""
        if self._stepper is not None:
            spent, steps = self._env_s(), self.env_steps
            before, then = self._spent_before
            if steps > then:
                self.steps.add((spent - before) / (steps - then))
                self._spent_before = (spent, steps)

    def acted(self, rows: int, seconds: float) -> None:
        """Counts a call of the network. The caller holds the network's lock: there may be several
        threads."""
        self.calls += 1
        self.rows += rows
        self.inference_s += seconds

    def replied(self, rows: int, seconds: float) -> None:
        """Counts a call of the network in an environment's own thread; see acted()."""
        self.acted(rows, seconds)
        self.replies_s += seconds

    def unusable(self, metrics: MetricSums | None) -> None:
        """Counts the values of info in an unroll that are no numbers; names each metric once."""
        if metrics is None or not metrics.unusable.any():
            return
        self.unusable_values += int(metrics.unusable.sum())
        names = self._stepper.spaces.metrics if self._stepper is not None else ()
        for name, times in zip(names, metrics.unusable.tolist(), strict=True):
            if times and name not in self._complained:
                self._complained.add(name)
                log.warning(
                    "env.metrics: %r in info is not always a finite number; such values are left"
                    " out and counted",
                    name,
                )

    def waited(self, phase: str, seconds: float) -> None:
        self.waits[phase] += seconds
        self.waiting_s += seconds

    def failed(self, where: str) -> None:
        self.failures[where] += 1

    def played_unrecorded(self, steps: int) -> None:
        self.unrecorded_steps += steps

    def game_ended(self, opponent: str, how: str) -> None:
        self.games[f"league_{opponent}_{how}"] += 1

    def costs(self) -> dict[str, float]:
        """Returns where the time went since the environments began, in seconds."""
        inline = self._stepper is not None and not self._stepper.beside
        return {
            "wall_s": time.monotonic() - self._began if self._began else 0.0,
            "env_s": self._env_s(),
            "loop_env_s": self._env_s() if inline else 0.0,  # the part of it that ran on the loop
            "inference_s": self.inference_s,
            "replies_s": self.replies_s,
            "calls": float(self.calls),
            "rows": float(self.rows),
            **{f"wait_{phase}_s": seconds for phase, seconds in self.waits.items()},
        }

    def collect(self) -> Iterator[Metric]:
        figures = self._figures()
        for metric in METRICS:
            yield metric.family("headrace_actor", figures)
        end = self._end
        for name, words, value in (
            ("unacked_fragments", "Not acknowledged", figures.get("unacked", 0.0)),
            (
                "ledger_unaccounted",
                "Unrolls lost by our own counting",
                settled_sum(end.outbox.unaccounted) if end else 0,
            ),
            (
                "last_ack_timestamp_seconds",
                "When an acknowledgement came",
                end.last_ack if end else 0.0,
            ),
        ):
            yield GaugeMetricFamily(f"headrace_actor_{name}", words, value=value)

    def _figures(self) -> dict[str, float]:
        """Returns all figures; those of the broker's connection are missing while there is none."""
        figures = {
            "env_steps": float(self.env_steps),
            "episodes": float(self.episodes),
            "raw_bytes": float(self.raw_bytes),
            "unrecorded": float(self.unrecorded_steps),
            "unusable": float(self.unusable_values),
            **{f"fail_{where}": float(n) for where, n in self.failures.items()},
            **{figure: float(n) for figure, n in self.games.items() if n},
            **self.costs(),
            **self.steps.figures("step"),
        }
        if self._end is not None:
            figures |= _figures_of_end(self._end)
        return figures


def _figures_of_end(end: SamplerEnd) -> dict[str, float]:
    outbox = end.outbox
    return {
        "generated": float(outbox.generated),
        "unacked": float(len(outbox)),
        "bytes": float(end.bytes_sent),
        "reconnects": float(end.link.reconnects),
        "unaccounted": float(outbox.unaccounted()),
        **{f"out_{outcome.name.lower()}": float(n) for outcome, n in outbox.outcomes.items()},
        **end.acks.figures("ack"),
    }
