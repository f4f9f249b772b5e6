"""The choice between two ways: the one by which more was done when all of the machine tried it."""

import pytest

from headrace.actors.acting.central.choice import PLACES, THREADS, Choice


def trial(choice: Choice, number: int, *, first: int, second: int) -> list[bool]:
    """Goes through the first twenty seconds, in each so many rows; returns by second which way."""
    went = []
    for second_of in range(20):
        now = 120.0 * number + second_of
        went.append(choice.first(now))
        choice.did(went[-1], first if went[-1] else second, now)
    return went


def test_samplers_ask_while_the_act_process_tries_its_threads() -> None:
    places, threads = Choice(PLACES), Choice(THREADS)
    assert trial(places, 1, first=10, second=10) == [True] * 12 + [False] * 8
    assert trial(threads, 1, first=10, second=10) == [True] * 2 + [False] * 18


def test_without_a_trial_it_goes_the_second_way() -> None:
    assert not Choice(PLACES).first(50.0)
    assert not Choice(THREADS).first(50.0)


@pytest.mark.parametrize("of", [PLACES, THREADS])
@pytest.mark.parametrize(("rows", "better"), [(200, True), (112, True), (108, False)])
def test_a_trial_decides_until_the_next(of: tuple[float, float], rows: int, better: bool) -> None:
    choice = Choice(of)
    trial(choice, 4, first=rows, second=100)
    assert choice.first(500.0) == choice.first(599.9) == better
    trial(choice, 5, first=50, second=100)
    assert not choice.first(620.0), "what was measured before is forgotten"


def test_what_is_done_while_others_still_change_over_does_not_count() -> None:
    choice = Choice(PLACES)
    trial(choice, 0, first=200, second=100)
    for now in (6.0, 8.9, 12.5, 14.0, 50.0):
        choice.did(False, 10_000, now)
    assert choice.first(51.0)


def test_an_act_process_that_could_not_answer_is_not_what_was_measured() -> None:
    """Counts for neither way what samplers did by themselves in its seconds."""
    choice = Choice(PLACES)
    for tenth in range(200):
        now = tenth / 10
        choice.did(False, 100, now)
    assert not choice.first(20.0)
    trial(choice, 1, first=200, second=100)
    assert choice.first(141.0)
