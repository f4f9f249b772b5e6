"""Holds how games between players ended, and the ratings that follow. Pure."""

import json
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.launch.ratings import elo
from headrace.launch.results import text_table


class Rated(NamedTuple):
    """Holds who played, how each pair's games ended, and the ratings with their intervals."""

    names: list[str]
    results: NDArray[np.int64]  # [players, players, won drawn lost], of the first of the pair
    rating: elo.Numbers
    low: elo.Numbers
    high: elo.Numbers

    @classmethod
    def of(cls, names: list[str], results: NDArray[np.int64]) -> "Rated":
        return cls(names, results, elo.ratings(results), *elo.intervals(results))

    def table(self) -> str:
        """Returns ratings and shares of points, the best first."""
        share = _both_ways(self.results)
        order = np.argsort(-self.rating, kind="stable")
        rows = [["player", "rating", "95 % interval", *(self.names[at] for at in order)]]
        for at in order:
            cells = ["" if np.isnan(share[at, of]) else f"{share[at, of]:.0%}" for of in order]
            interval = f"{self.low[at]:.0f} to {self.high[at]:.0f}"
            rows.append([self.names[at], f"{self.rating[at]:.0f}", interval, *cells])
        return "\n".join(text_table.columns(rows, words=(0,)))

    def as_json(self) -> str:
        plain = {
            "players": self.names,
            "rating": self.rating.round(1).tolist(),
            "low": self.low.round(1).tolist(),
            "high": self.high.round(1).tolist(),
            "won_drawn_lost": self.results.tolist(),
        }
        return json.dumps(plain)


def _both_ways(results: NDArray[np.int64]) -> NDArray[np.float64]:
    """Returns shares of points; where only one of a pair came first, the other's is the rest."""
    share = elo.points(results)
    rest = 1.0 - share.T
    return np.where(np.isnan(share), rest, share)
