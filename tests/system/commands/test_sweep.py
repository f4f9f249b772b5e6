"""`headrace sweep` and `compare` with real runs."""

from tests.system.conftest import Place


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
