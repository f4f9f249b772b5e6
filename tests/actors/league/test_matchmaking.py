"""Whom the policy meets next."""

import pytest

from headrace.actors.league.matchmaking import Record, chances


def record(*games: float) -> Record:
    made = Record()
    for won in games:
        made.add(won)
    return made


def test_all_alike_the_newest_or_whom_the_policy_loses_to() -> None:
    strong, even, weak = record(*[0.0] * 50), record(*[1.0, 0.0] * 25), record(*[1.0] * 50)
    league = [strong, even, weak]
    assert chances("uniform", league).tolist() == pytest.approx([1 / 3] * 3)
    assert chances("newest", league).tolist() == [0, 0, 1]
    prioritised = chances("prioritised", league)
    assert prioritised.sum() == pytest.approx(1)
    assert prioritised[0] > 3 * prioritised[1] > 9 * prioritised[2] > 0


def test_nobody_is_judged_by_a_few_games() -> None:
    assert Record().share == 0.5
    assert record(1.0).share == pytest.approx(2 / 3)
    assert record(0.5).share == pytest.approx(0.5)


def test_old_games_fade() -> None:
    assert record(*[0.0] * 300, *[1.0] * 300).share > 0.9
