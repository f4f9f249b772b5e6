"""Ratings against what Elo's formula says of the games that led to them."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from headrace.launch.ratings import elo


def results(players: int, **pairs: tuple[int, int, int]) -> NDArray[np.int64]:
    made = np.zeros((players, players, 3), np.int64)
    for pair, games in pairs.items():
        made[int(pair[1]), int(pair[2])] = games
    return made


def test_of_two_the_difference_is_that_of_their_points() -> None:
    first, second = elo.ratings(results(2, p01=(70, 20, 10)))
    share = (70 + 10 + 0.5) / 101  # a drawn game more
    assert first - second == pytest.approx(400 * math.log10(share / (1 - share)), abs=1e-3)
    assert first + second == pytest.approx(0, abs=1e-6)


def test_who_wins_all_is_not_infinitely_good() -> None:
    first, second = elo.ratings(results(2, p01=(1000, 0, 0)))
    assert 1000 < first - second < 2000


def test_who_beats_whoever_beats_you_is_above_you() -> None:
    best, middle, worst = elo.ratings(results(3, p01=(80, 0, 20), p12=(80, 0, 20)))
    assert best > middle > worst
    assert best - middle == pytest.approx(middle - worst, abs=1e-3)


def test_who_is_first_of_a_pair_makes_no_difference() -> None:
    one = elo.ratings(results(3, p01=(7, 2, 1), p02=(5, 0, 5), p12=(1, 1, 8)))
    other = elo.ratings(results(3, p10=(1, 2, 7), p02=(5, 0, 5), p21=(8, 1, 1)))
    assert one == pytest.approx(other)


@given(arrays.arrays(np.int64, (4, 4, 3), elements=st.integers(0, 30)))
def test_under_the_ratings_everybody_takes_the_points_it_took(games: NDArray[Any]) -> None:
    for player in range(4):
        games[player, player] = 0
    for player in range(3):
        games[player, player + 1, 1] += 1  # all are connected
    found = elo.ratings(games)
    expected = 1 / (1 + 10 ** ((found[None, :] - found[:, None]) / 400))
    took, count = np.zeros(4), games.sum(-1) + games.sum(-1).T
    for one in range(4):
        for other in range(4):
            won, drawn, lost = games[one, other]
            took[one] += won + drawn / 2
            took[other] += lost + drawn / 2
    played = count > 0
    assert ((count + played) * expected).sum(1) == pytest.approx(took + played.sum(1) / 2, abs=1e-3)


def test_points_and_pairs_that_have_not_played() -> None:
    share = elo.points(results(2, p01=(3, 2, 5)))
    assert share[0, 1] == pytest.approx(0.4) and math.isnan(share[1, 0])


def test_the_interval_is_narrower_the_more_games_there_are() -> None:
    few = elo.intervals(results(2, p01=(7, 0, 3)))
    many = elo.intervals(results(2, p01=(700, 0, 300)))
    widths = [float(high[0] - low[0]) for low, high in (few, many)]
    assert widths[0] > 5 * widths[1]
    true = elo.ratings(results(2, p01=(700, 0, 300)))[0]
    assert many[0][0] < true < many[1][0]
