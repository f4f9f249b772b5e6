"""Rates checkpoints that are spread over the run, and shows the best first."""

import json

import numpy as np

from headrace.launch.ratings.rated import Rated
from headrace.launch.results.loaded_run import spread


def test_checkpoints_are_spread_over_the_run() -> None:
    assert spread([3, 5, 9], 6) == [3, 5, 9]
    assert spread(list(range(0, 101, 10)), 3) == [0, 50, 100]
    assert spread(list(range(10)), 1) == [0]


def test_the_table_has_the_best_first_and_both_sides_of_a_pair() -> None:
    results = np.zeros((3, 3, 3), np.int64)
    results[0, 1] = 10, 0, 90
    results[0, 2] = 0, 0, 100
    results[1, 2] = 25, 0, 75
    rated = Rated.of(["random", "10", "20"], results)
    rows = [line.split() for line in rated.table().splitlines()]
    assert [row[0] for row in rows] == ["player", "20", "10", "random"]
    assert rows[1][-2:] == ["75%", "100%"] and rows[2][-2:] == ["25%", "90%"]
    assert rows[3][-2:] == ["0%", "10%"]
    told = json.loads(rated.as_json())
    assert told["players"] == ["random", "10", "20"]
    assert all(a < b < c for a, b, c in zip(told["low"], told["rating"], told["high"], strict=True))
