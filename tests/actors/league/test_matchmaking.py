"""Whom the policy meets next."""

from collections.abc import Sequence
from typing import Any

import pytest

from headrace.actors.league import matchmaking
from headrace.actors.league.matchmaking import Candidate, Record, rule
from headrace.learner.models.named_code import OwnCodeError

HERE = __name__


def record(*games: float) -> Record:
    made = Record()
    for won in games:
        made.add(won)
    return made


def candidates(*records: Record) -> list[Candidate]:
    return [Candidate("", at, one.games, one.share) for at, one in enumerate(records)]


def chances(pick: str, *records: Record) -> Any:
    return matchmaking.chances(pick, rule(pick), candidates(*records))


def test_all_alike_the_newest_or_whom_the_policy_loses_to() -> None:
    league = record(*[0.0] * 50), record(*[1.0, 0.0] * 25), record(*[1.0] * 50)
    assert chances("uniform", *league).tolist() == pytest.approx([1 / 3] * 3)
    assert chances("newest", *league).tolist() == [0, 0, 1]
    prioritised = chances("prioritised", *league)
    assert prioritised.sum() == pytest.approx(1)
    assert prioritised[0] > 3 * prioritised[1] > 9 * prioritised[2] > 0


def the_oldest_but_random(league: Sequence[Candidate]) -> list[int]:
    return [int(one.version == 0 and one.name != "random") for one in league]


def too_few(league: Sequence[Candidate]) -> list[float]:
    return [1.0] * (len(league) - 1)


def nobody(league: Sequence[Candidate]) -> list[float]:
    return [0.0] * len(league)


def endless(league: Sequence[Candidate]) -> list[float]:
    return [float("inf")] * len(league)


def below(league: Sequence[Candidate]) -> list[float]:
    return [-1.0, *[2.0] * (len(league) - 1)]


def broken(league: Sequence[Candidate]) -> list[float]:
    raise RuntimeError(f"out of order, with {len(league)}")


def test_a_rule_of_ones_own() -> None:
    pick = f"{HERE}:the_oldest_but_random"
    league = [Candidate("random", -1, 3.0, 0.9), *candidates(record(), record(1.0))]
    assert matchmaking.chances(pick, rule(pick), league).tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("too_few", "gives [1.0]; it must give a number of 0 or more for each of 2"),
        ("nobody", "gives [0.0, 0.0]; it must give"),
        ("endless", "gives [inf, inf]; it must give"),
        ("below", "gives [-1.0, 2.0]; it must give"),
        ("broken", "failed, mend it: RuntimeError: out of order, with 2"),
    ],
)
def test_a_rule_that_fails_is_told_in_a_line(name: str, words: str) -> None:
    with pytest.raises(OwnCodeError) as raised:
        chances(f"{HERE}:{name}", record(), record())
    assert f'league.pick = "{HERE}:{name}" {words}' in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_rule_that_is_not_there() -> None:
    with pytest.raises(OwnCodeError, match="cannot be imported"):
        rule(f"{HERE}:no_such")


def test_nobody_is_judged_by_a_few_games() -> None:
    assert Record().share == 0.5
    assert record(1.0).share == pytest.approx(2 / 3)
    assert record(0.5).share == pytest.approx(0.5)


def test_old_games_fade() -> None:
    assert record(*[0.0] * 300, *[1.0] * 300).share > 0.9
