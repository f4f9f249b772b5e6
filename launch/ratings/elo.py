"""Rates players by their games with each other, as Elo does. Pure.

A player that is 400 above another takes ten points of eleven from it. The ratings are those under
which the games that were played are likeliest (Bradley and Terry), found by Hunter's iteration;
beside them each pair counts one drawn game more, so that nobody is infinitely good.
"""

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

_POINTS: Final = np.array([1.0, 0.5, 0.0])
_SCALE: Final = 400 / math.log(10)
_ROUNDS, _ENOUGH = 10_000, 1e-9
_RESAMPLED = 200


def points(results: NDArray[np.int64]) -> Numbers:
    """Returns the share of points that the first of each pair took; NaN = they have not played.
    `results`: games [players, players, won drawn lost], of the first of the pair."""
    games = results.sum(axis=-1)
    share: Numbers = np.full(games.shape, np.nan)
    np.divide(results @ _POINTS, games, out=share, where=games > 0)
    return share


def ratings(results: NDArray[np.int64]) -> Numbers:
    """Returns a rating for each player; their mean is 0. All must be connected by games."""
    took = results @ _POINTS
    took = took + (results @ _POINTS[::-1]).T  # what it took as the second of a pair
    games = results.sum(axis=-1)
    games = games + games.T
    played = games > 0
    took = took.sum(axis=1) + 0.5 * played.sum(axis=1)
    games = games + played
    strength = np.ones(len(games))
    for _ in range(_ROUNDS):
        shared = games / (strength[:, None] + strength[None, :])
        better = took / shared.sum(axis=1)
        better /= np.exp(np.log(better).mean())
        if np.abs(np.log(better / strength)).max() < _ENOUGH:
            break
        strength = better
    found: Numbers = _SCALE * np.log(better)
    return found


def intervals(results: NDArray[np.int64], *, seed: int = 0) -> tuple[Numbers, Numbers]:
    """Returns the ends of each rating's 95 % interval: a bootstrap over the games of each pair."""
    dice = np.random.default_rng(seed)
    games = results.sum(axis=-1)
    shares = results / np.maximum(games, 1)[..., None]
    shares[games == 0] = (1.0, 0.0, 0.0)  # of no games
    drawn = [ratings(dice.multinomial(games, shares)) for _ in range(_RESAMPLED)]
    low, high = np.quantile(np.array(drawn), (0.025, 0.975), axis=0)
    return low, high
