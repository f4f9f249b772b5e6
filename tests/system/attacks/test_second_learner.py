"""A second learner on one broker, as real processes."""

from tests.system.conftest import Place, Process
from tests.system.harness.tally import tally


def second(place: Place, *arguments: str) -> Process:
    """In a folder of its own, so that no lock of ours keeps it from the broker."""
    return place.headrace(
        "learner",
        "--run",
        place.run,
        "--broker",
        place.ipc,
        "--out",
        str(place.folder / "other"),
        "--ledger",
        str(place.ledger),
        *arguments,
    )


def test_it_is_refused_and_takes_over_only_when_told_to(place: Place) -> None:
    broker, first, actor = place.broker(), place.learner(), place.actor()
    place.trains(40)

    refused = second(place)
    assert refused.ends() == 2
    (line,) = [line for line in refused.lines() if "ERROR" in line]
    assert "learner-0 from 127.0.0.1 (rank 0 of 1, here since " in line
    assert "--take-over" in line
    place.trains(40)

    forgetful = second(place, "--take-over")
    assert forgetful.ends() == 2
    assert "would be forgotten" in forgetful.text()
    assert "--fresh" in forgetful.text()
    place.trains(40)
    assert first.popen.poll() is None

    other = second(place, "--take-over", "--fresh")
    assert first.ends() == 2
    (line,) = [line for line in first.lines() if "ERROR" in line]
    assert "trains this run now, by --take-over" in line
    other.says("forgotten")
    place.trains(40)
    assert actor.term() == other.term() == broker.term() == 0
    for process in (broker, first, other, actor):
        assert "Traceback" not in process.text()
    account = place.account()
    assert (account.unaccounted(), account.untrue, account.in_flight) == (0, 0, 0)
    # What the first one had trained and not said, when it was put out, is trained again.
    assert tally(place.ledger).twice() <= 6


def test_one_that_was_killed_comes_back_by_itself(place: Place) -> None:
    """Its connection is closed: nobody waits for its lease, which is a minute here."""
    text = (place.folder / "run.toml").read_text().replace("lease_s = 2.0", "lease_s = 60.0")
    place.toml("run.toml", text)
    broker, first, actor = place.broker(), place.learner(), place.actor()
    place.trains(40)
    first.kill()
    again = place.learner("--resume")
    place.trains(40)
    assert actor.term() == again.term() == broker.term() == 0
    assert place.account().unaccounted() == 0
