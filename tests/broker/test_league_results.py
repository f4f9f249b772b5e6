"""Results of a league's games, against Elo's own formula and games that are drawn by it."""

import math
import random

import numpy as np
import pytest

from headrace.broker.league_results import FIGURES, MOST_OTHERS, LeagueResults, rating, together
from headrace.launch.ratings import elo


def results_of(share: float, games: int, seed: int = 0) -> list[int]:
    won = sum(random.Random(seed * 100_000 + n).random() < share for n in range(games))
    return [won, 0, games - won]


def points(results: list[int]) -> tuple[float, int]:
    won, drawn, _ = results
    return won + drawn / 2, sum(results)


def test_a_rating_is_what_all_ratings_together_would_say() -> None:
    for results in ([10, 0, 5], [0, 7, 1], [30, 0, 0], [3, 2, 900]):
        games = np.zeros((2, 2, 3), np.int64)
        games[0, 1] = results
        first, second = elo.ratings(games)
        assert rating(*points(results))["rating"] == pytest.approx(first - second, abs=0.1)


def test_an_interval_holds_the_truth_nineteen_times_of_twenty() -> None:
    for share in (0.5, 0.8, 0.97):
        true = 400 * math.log10(share / (1 - share))
        found = [rating(*points(results_of(share, 200, seed))) for seed in range(400)]
        held = sum(one["low"] <= true <= one["high"] for one in found) / len(found)
        assert 0.92 <= held <= 0.99, share


def test_nobody_is_infinitely_good() -> None:
    best = rating(50.0, 50)
    assert best["points"] == 1.0
    assert 0 < best["low"] < best["rating"] < best["high"] < 3000
    nothing = rating(0.0, 0)
    assert nothing["rating"] == 0.0 and nothing["low"] == -nothing["high"]


def test_a_row_for_each_who_was_met_by_name() -> None:
    league = LeagueResults()
    league.names = ("random", "mine:player")
    assert league.shown() == []
    for figure, games in (
        ("league_other_2_won", 3),
        ("league_past_lost", 2),
        ("league_other_2_drawn", 1),
        ("league_other_16_won", 1),
    ):
        league.add(figure, games)
    rows = league.shown()
    assert [row["opponent"] for row in rows] == ["past", "mine:player", "other_16"]
    assert [(row["won"], row["drawn"], row["lost"]) for row in rows] == [
        (0, 0, 2),
        (3, 1, 0),
        (1, 0, 0),
    ]
    assert rows[1]["points"] == pytest.approx(3.5 / 4, abs=0.01)


def test_a_rating_is_of_the_newer_games() -> None:
    league = LeagueResults()
    for _ in range(500):
        league.add("league_past_lost", 10)
    assert league.shown()[0]["rating"] < -500
    for _ in range(500):
        league.add("league_past_won", 10)
    (row,) = league.shown()
    assert row["won"] == row["lost"] == 5000
    assert row["points"] > 0.99
    league.add("league_past_lost", 5000)  # more at once than are recent
    assert league.shown()[0]["points"] == 0.0


def test_its_figures_are_a_closed_set() -> None:
    assert len(FIGURES) == 3 * (1 + MOST_OTHERS)
    with pytest.raises(KeyError):
        LeagueResults().add("league_other_17_won", 1)


def test_results_of_several_brokers_are_those_of_one() -> None:
    whole, parts = LeagueResults(), [LeagueResults(), LeagueResults()]
    for at, (figure, games) in enumerate(
        [("league_past_won", 30), ("league_past_lost", 10), ("league_other_1_drawn", 4)]
    ):
        for one in (whole, parts[at % 2]):
            one.names = ("random",)
            one.add(figure, games)
    (past, other), wanted = together(part.shown() for part in parts), whole.shown()
    assert other == wanted[1] and past.keys() == wanted[0].keys()
    for key, value in wanted[0].items():
        near = pytest.approx(value, abs=2.0) if isinstance(value, float) else value
        assert past[key] == near, key  # games of one broker fade a little less
    assert together([[], []]) == []
