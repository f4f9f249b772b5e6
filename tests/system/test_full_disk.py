"""Reports that cannot be written: the run still ends as it should."""

import pytest

from tests.system.conftest import Place, until


@pytest.mark.parametrize("goal", [False, True])
def test_a_run_whose_reports_cannot_be_written(place: Place, goal: bool) -> None:
    train = place.train(
        "--stop-steps", "9000", "--quiet", *(["--stop-return", "9999"] if goal else [])
    )
    until(place.history, "history")
    for name in ("learner.json", "broker.json", "summary.json"):
        (place.out / name).mkdir()  # as good as a full disk
    assert train.ends() == (3 if goal else 0), train.text()
    assert "Traceback" not in train.text()
    assert "starting it again" not in train.text()
    said = [line.split(" ERROR ")[1] for line in train.lines()]
    assert [words.split(":")[0] for words in said] == [
        "the learner's report is not written",
        "the broker's report is not written",
        "the run's summary is not complete",
    ]
    assert place.history()[-1]["trained_steps"] < 12_000
    place.nothing_is_left()
