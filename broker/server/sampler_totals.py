"""Sums the figures that samplers send with every beat. Pure.

A sampler sends totals since it began; the broker adds up what they grew by. So its own totals never
fall when a sampler leaves, and one that comes back is not counted twice. Names are a closed set:
what a peer makes up is not kept.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

from headrace.broker import league_results
from headrace.broker.league_results import LeagueResults
from headrace.broker.sampler_figures import GROWING

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
