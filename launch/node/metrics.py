"""The metrics of a node; the figures of its samplers are summed."""

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace.broker.sampler_figures import COUNTERS
from headrace.launch.node.restarts import ProcessSlot
from headrace.launch.process.memory_use import pss_bytes
from headrace.launch.process.node_reports import ProcessFigures

# Of the relay of the first broker's weights; that of the second is one below it, and so on.
RELAY: Final = -1
ACT: Final = -1000  # of the process that calls the network for all samplers
_OF_SAMPLERS: Final = [
    counter for counter in COUNTERS if counter.metric in ("env_steps", "episodes", "wait_seconds")
]
_OF_ACT: Final = ("act_rows", "act_calls", "act_seconds")
# Totals, which count ended processes, too; all other figures are of those that live. Those of the
# relay are bytes and fetches, and of both it and the act process the index is below 0.
_COUNTED: Final = frozenset(
    {"bytes", "fetches", *_OF_ACT, *(name for counter in _OF_SAMPLERS for name in counter.names())}
)
_NOW: Final = frozenset({"unacked", "version"})
_MEMORY_EVERY_S: Final = 5.0
_MOST: Final = 1e15


class NodeMetrics(Collector):
    """Sums what a node's processes report; written by the node's thread, read by a scrape's."""

    def __init__(self, registry: CollectorRegistry, slots: Mapping[int, ProcessSlot]) -> None:
        self._slots = slots
        self._gone: Counter[tuple[bool, str]] = Counter()  # (of the relay, name), of ended ones
        self._last: dict[int, ProcessFigures] = {}  # by index, of those that live
        self._memory = (0.0, 0)  # when it was looked at, bytes
        registry.register(self)

    def update(self, index: int, said: ProcessFigures) -> None:
        """Updates a process's figures; a total never falls, whatever the process reports."""
        before = self._last.get(index)
        stats = dict(before.stats) if before is not None else {}
        for name, value in said.stats.items():
            if name in _COUNTED | _NOW and math.isfinite(value) and abs(value) < _MOST:
                stats[name] = max(value, stats.get(name, 0.0)) if name in _COUNTED else value
        self._last[index] = ProcessFigures(said.pid, said.welcome, said.over, said.drain_s, stats)

    def ended(self, index: int) -> ProcessFigures | None:
        """Adds the process's totals to those of ended processes; returns its last report."""
        last = self._last.pop(index, None)
        if last is not None:
            for name in _COUNTED & last.stats.keys():
                self._gone[index < 0, name] += last.stats[name]  # type: ignore[assignment]
        return last

    def last_report(self, index: int) -> ProcessFigures | None:
        return self._last.get(index)

    def welcome(self) -> int:
        """Counts the samplers that a broker knows."""
        return sum(said.welcome for index, said in self._each() if index >= 0)

    def drain_s(self, default: float) -> float:
        """Returns the seconds that the slowest sampler may need to end."""
        return max((said.drain_s for index, said in self._each() if index >= 0), default=default)

    def total(self, name: str, *, relay: bool = False) -> float:
        live = sum(
            said.stats.get(name, 0.0) for index, said in self._each() if (index < 0) == relay
        )
        return live + self._gone[relay, name]

    def collect(self) -> Iterator[Metric]:
        # A copy: the node's thread may make more of them meanwhile.
        samplers = [slot for index, slot in list(self._slots.items()) if index >= 0]
        laid = [said.stats.get("version", -1.0) for at, said in self._each() if ACT < at < 0]
        for gauge, words, number in (
            ("samplers", "Samplers that run", sum(slot.pid > 0 for slot in samplers)),
            ("samplers_wanted", "Samplers that should", sum(slot.wanted for slot in samplers)),
            ("samplers_welcome", "Samplers that a broker knows", self.welcome()),
            (
                "weights_version",
                "Newest weights on the machine's shelf, of several the oldest; -1 = none",
                min(laid, default=-1.0),
            ),
            ("samplers_memory_bytes", "Of all samplers, shared pages once", self._pss(samplers)),
            ("samplers_unacked_fragments", "Not acknowledged", self.total("unacked")),
        ):
            yield GaugeMetricFamily(f"headrace_node_{gauge}", words, value=number)
        for counter, words, value in (
            ("restarts", "Samplers started again", sum(slot.restarts for slot in samplers)),
            ("weights_bytes", "Weights fetched", self.total("bytes", relay=True)),
            ("weights_fetches", "Versions fetched", self.total("fetches", relay=True)),
            ("act_rows", "Rows the act process acted on", self.total("act_rows", relay=True)),
            ("act_calls", "Its calls of the network", self.total("act_calls", relay=True)),
            ("act_seconds", "Time in these calls", self.total("act_seconds", relay=True)),
        ):
            yield CounterMetricFamily(f"headrace_node_{counter}", words, value=value)
        totals = {name: self.total(name) for name in _COUNTED}
        for shown in _OF_SAMPLERS:
            yield shown.family("headrace_node_samplers", totals)

    def _each(self) -> list[tuple[int, ProcessFigures]]:
        """Returns a copy of the last reports, as they are at this moment."""
        return list(self._last.items())

    def _pss(self, samplers: list[ProcessSlot]) -> int:
        """Returns the samplers' memory, at most 5 s old: the kernel walks all pages for it."""
        now = time.monotonic()
        if not self._memory[0] or now - self._memory[0] > _MEMORY_EVERY_S:
            self._memory = (now, pss_bytes([slot.pid for slot in samplers if slot.pid]))
        return self._memory[1]
