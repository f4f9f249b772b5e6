"""The figures that samplers send with every beat, their sums, and the metrics that show them. Pure.

A sampler shows its own, a node and the broker the sums over samplers. All figures here only grow;
what may fall (`unacked`, `unaccounted`) is added up over the samplers that are connected.

A sampler sends totals since it began; whoever sums them adds up what they grew by. So sums never
fall when a sampler leaves, and one that comes back is not counted twice. Names are a closed set:
what a peer makes up is not kept.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final, NamedTuple

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

from headrace.broker import histograms, league_results
from headrace.broker.league_results import LeagueResults
from headrace.broker.protocol.messages import Outcome

WAITS: Final = ("credit", "weights", "env", "gather")
FAILURES: Final = ("make", "reset", "step", "time-out", "death", "values")
OUTCOMES: Final = tuple(outcome.name.lower() for outcome in Outcome)


class Counter(NamedTuple):
    """Describes a counter of one figure, or of one for each value of its labels."""

    metric: str  # the name, after a prefix for whose it is
    help: str
    figures: Mapping[str, str]  # by values of the labels, with spaces between; without any by ""
    labels: str = ""  # their names, with spaces between
    zeros: bool = True  # figures of 0 are shown, too

    def family(self, prefix: str, stats: Mapping[str, float]) -> CounterMetricFamily:
        """Returns the metric; a figure that `stats` lacks is 0."""
        labels = self.labels.split()
        family = CounterMetricFamily(f"{prefix}_{self.metric}", self.help, labels=labels)
        for values, figure in self.figures.items():
            number = stats.get(figure, 0.0)
            if number or self.zeros:
                family.add_metric(values.split(), number)
        return family

    def names(self) -> tuple[str, ...]:
        """Returns the names of its figures."""
        return tuple(self.figures.values())


class Histogram(NamedTuple):
    """Describes a histogram, whose figures are those of `histograms.Buckets`."""

    metric: str  # the name, after a prefix for whose it is
    help: str
    figure: str  # what the names of its figures begin with
    edges: tuple[float, ...]

    def family(self, prefix: str, stats: Mapping[str, float]) -> HistogramMetricFamily:
        """Returns the metric; a figure that `stats` lacks is 0."""
        *counts, total = (stats.get(name, 0.0) for name in self.names())
        buckets = histograms.cumulative(self.edges, counts)
        name = f"{prefix}_{self.metric}"
        return HistogramMetricFamily(name, self.help, buckets=buckets, sum_value=total)

    def names(self) -> tuple[str, ...]:
        """Returns the names of its figures."""
        return histograms.names(self.figure, self.edges)


COUNTERS: Final = (
    Counter("env_steps", "Agent steps, dead ones left out", {"": "env_steps"}),
    Counter("episodes", "Episodes that ended", {"": "episodes"}),
    Counter("generated_fragments", "Unrolls finished", {"": "generated"}),
    Counter("env_seconds", "Inside the environments, added up", {"": "env_s"}),
    Counter("inference_seconds", "Inside the network", {"": "inference_s"}),
    Counter("inference_calls", "Of the network", {"": "calls"}),
    Counter("inference_rows", "Observations it was called for", {"": "rows"}),
    Counter("reconnects", "Connections begun anew", {"": "reconnects"}),
    Counter(
        "wait_seconds", "Waiting, by what for", {why: f"wait_{why}_s" for why in WAITS}, "phase"
    ),
    Counter(
        "fragments",
        "Unrolls by acknowledged outcome",
        {outcome: f"out_{outcome}" for outcome in OUTCOMES},
        "outcome",
    ),
    Counter(
        "env_failures",
        "Environments restarted, by why",
        {where: f"fail_{where}" for where in FAILURES},
        "where",
    ),
    Counter(
        "league_games",
        "Games of the policy with one of the league, by who (past: weights of before; other_1: the"
        " first of league.others) and by how they ended for the policy",
        {f"{who} {how}": figure for figure, (who, how) in league_results.FIGURES.items()},
        "opponent outcome",
        zeros=False,
    ),
    Counter(
        "unrecorded_steps",
        "Agent steps that no unroll holds: another policy learned, and this one might not begin",
        {"": "unrecorded"},
    ),
    Counter("metric_unusable", "Values in info that are no numbers", {"": "unusable"}),
    Counter(
        "fragment_bytes", "Unroll bytes by stage", {"raw": "raw_bytes", "wire": "bytes"}, "stage"
    ),
)
HISTOGRAMS: Final = (
    Histogram(
        "ack_seconds", "From sending an unroll to its acknowledgement", "ack", histograms.ACK_S
    ),
    Histogram(
        "env_step_seconds", "Of an environment's step, mean of an unroll", "step", histograms.STEP_S
    ),
)
METRICS: Final = (*COUNTERS, *HISTOGRAMS)
# The names of all these figures.
GROWING: Final = tuple(name for metric in METRICS for name in metric.names())

# Of the time since a sampler's environments began: all of it, and what they took on its own loop.
_SHARES: Final = ("wall_s", "loop_env_s")
# Samplers that left and may come back.
_MOST_GONE: Final = 1024
# More than this in one beat is not an honest figure.
_MOST: Final = 1e15


class SamplerTotals:
    """Sums what all samplers say of themselves into totals that never fall."""

    def __init__(self) -> None:
        self.totals: dict[str, float] = dict.fromkeys((*GROWING, *_SHARES), 0.0)
        self.league = LeagueResults()
        self._last: OrderedDict[int, Mapping[str, float]] = OrderedDict()  # by incarnation

    def add(self, inc: int, stats: Mapping[str, float], *, here: int, age_s: float) -> None:
        """Adds one sampler's beat. `here`: how many there are. `age_s`: seconds that we have
        counted; what a sampler did before that was counted by another broker."""
        before = self._last.pop(inc, None)
        if before is None:
            before = {} if stats.get("wall_s", 0.0) <= age_s else stats
        for name, value in stats.items():
            grown = value - before.get(name, 0.0)
            if 0.0 < grown < _MOST and name in self.totals:
                self.totals[name] += grown
                if name in league_results.FIGURES:
                    self.league.add(name, grown)
        self._last[inc] = stats
        while len(self._last) > here + _MOST_GONE:
            self._last.popitem(last=False)
