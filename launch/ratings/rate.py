"""`headrace rate`: plays what a run was at different times, and others, against each other.

Each of a pair plays one agent against the other, by turns each seat. Written to league.json in the
run's folder.
"""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from headrace.actors import evaluator
from headrace.actors.acting.opponents import RANDOM
from headrace.actors.acting.trained_policy import PolicyLike
from headrace.actors.envs.make import look_at
from headrace.broker import durable
from headrace.launch.config import run_file
from headrace.launch.process import runtime
from headrace.launch.ratings import elo
from headrace.launch.results import loaded_run, text_table
from headrace.launch.results.report import RATINGS

_SIDE_BY_SIDE = 32  # games


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


def rate(run_dir: Path, *, players: int, games: int, others: Sequence[str], greedy: bool) -> int:
    """Plays the games and prints the table; returns the exit status."""
    newest = loaded_run.load(run_dir, "newest")
    torch.set_num_threads(1)
    how = msgspec.structs.replace(
        newest.run.evaluate, episodes=games, envs=min(games, _SIDE_BY_SIDE), greedy=greedy
    )
    agents = look_at(newest.run.env)[1]
    evaluator.check_others(newest.run.env, agents, "rate")
    league: dict[str, PolicyLike] = {}
    for key, given in (
        ("league.others", (RANDOM, *newest.run.league.others)),
        ("--against", others),
    ):
        for name in given:
            league[name] = loaded_run.named_player(key, name, newest.spaces, how.seed)
    for version in loaded_run.spread(loaded_run.versions(run_dir, "checkpoints", "best"), players):
        found = loaded_run.load(run_dir, str(version))
        league[str(version)] = loaded_run.policy_of(found, seed=how.seed + version)
    names = list(league)
    results = np.zeros((len(names), len(names), 3), np.int64)
    # Of two agents each pair's games say all; of more it matters who is alone.
    pairs = itertools.combinations if agents == 2 else itertools.permutations
    for first, second in pairs(range(len(names)), 2):
        scores = evaluator.play(
            league[names[first]], newest.run.env, newest.spaces, how, against=league[names[second]]
        )
        won, lost = scores.outcomes
        results[first, second] = won, games - won - lost, lost
    rated = Rated.of(names, results)
    print(rated.table())  # noqa: T201
    try:
        durable.write(run_dir / RATINGS, rated.as_json() + "\n")
    except OSError as error:
        raise run_file.ConfigError(f"cannot write {run_dir / RATINGS}: {error.strerror}") from error
    return runtime.OK


def _both_ways(results: NDArray[np.int64]) -> NDArray[np.float64]:
    """Returns shares of points; where only one of a pair came first, the other's is the rest."""
    share = elo.points(results)
    rest = 1.0 - share.T
    return np.where(np.isnan(share), rest, share)
