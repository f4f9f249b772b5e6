"""`headrace sweep` and `compare` with real runs."""

import signal

import pytest

from tests.system.conftest import PATIENCE_S, Place, until


def test_two_seeds_are_trained_compared_and_not_trained_again(place: Place) -> None:
    limits = ("--set", "stop.return=none", "--set", "stop.steps=1000")
    words = ("sweep", place.run, "--seeds", "1,2", "--out", str(place.out), *limits)
    first = place.headrace(*words)
    assert first.ends() == 0, first.text()
    assert len(list(place.out.glob("*/checkpoints"))) == 2
    assert "<svg" in (place.out / "compared.html").read_text()
    assert first.text().count(" trains") == 2
    again = place.headrace(*words)
    assert again.ends() == 0, again.text()
    assert "2 of them complete already" in again.text()
    assert " trains" not in again.text()
    place.nothing_is_left()


@pytest.mark.parametrize("how", ["SIGKILL", "SIGINT"])
def test_its_trainings_end_with_it_and_go_on_with_it(place: Place, how: str) -> None:
    words = ("sweep", place.run, "--seeds", "1,2", "--parallel", "1", "--out", str(place.out))
    sweep = place.headrace(*words)
    until(lambda: list(place.out.glob("*/checkpoints/[0-9]*")), "a checkpoint")
    sweep.signal(signal.Signals[how])
    assert sweep.ends() != 0
    place.nothing_is_left(timeout_s=PATIENCE_S)
    again = place.headrace(*words)
    again.says("seed=1 goes on")
    assert again.term() != 0
    place.nothing_is_left(timeout_s=PATIENCE_S)
