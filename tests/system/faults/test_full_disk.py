"""Full disks, and reports that cannot be written: the run still goes on, and ends as it should."""

import json
import time

import pytest

from headrace.learner.checkpoints import checkpoint
from tests.system.commands.test_metrics import by, port_of, scrape, value
from tests.system.conftest import Place, until
from tests.system.harness import disks, figures
from tests.system.harness.figures import say


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


def test_a_disk_that_is_full_for_a_while(place: Place) -> None:
    """The run's disk is filled while it trains, and has room again later. Training goes on, failed
    saves are counted and said, and the next save succeeds; ledger and history are as good as they
    can be."""
    began = time.monotonic()
    with disks.disk(place.folder / "disk", 4096) as disk:
        place.out = disk / "out"
        place.ledger = place.out / "ledger"
        broker = place.broker()
        learner, actor = place.learner("--metrics-port", "0"), place.actor()
        port = port_of(learner)

        def saves(result: str) -> float:
            return by(scrape(port)["headrace_learner_checkpoint"], "result")[result]

        def trained() -> float:
            return value(scrape(port)["headrace_learner_samples"])

        until(lambda: saves("ok") >= 2, "two checkpoints")
        assert saves("failed") == 0
        ballast = disks.fill(disk)
        until(lambda: saves("failed") >= 2, "failed saves")
        before, old = trained(), place.checkpoints()[-1]
        assert checkpoint.load(old)
        until(lambda: trained() > before + 500, "training on a full disk")
        if figures.LONG:  # the page that it has takes lines for some seconds more
            learner.says("the history has a gap from here")
        learner.says("the journal ends here")
        failed, ok, lines = saves("failed"), saves("ok"), len(place.history())
        ballast.unlink()
        until(lambda: saves("ok") > ok, "a save once there is room")
        until(lambda: len(place.history()) > lines + 2, "history once there is room")
        assert (learner.term(), actor.term(), broker.term()) == (0, 0, 0)
        found = checkpoint.load_latest(place.out / "checkpoints")
        assert found is not None and found.path > old
        steps = [line["trained_steps"] for line in place.history()]
        assert steps == sorted(steps)
        assert json.loads((place.out / "learner.json").read_text())["stop_reason"] == "stopped"
        for process in (learner, actor, broker):
            assert "Traceback" not in process.text(), process.text()
        said = learner.text()
        assert "could not be written: [Errno 28] No space left on device" in said
        assert said.count("the journal ends here") == 1
        again = place.learner("--resume")
        again.says(f"continues from .*{found.path.name}")
        assert again.term() == 0
    say(
        "full disk while training",
        faults=int(failed),
        trained=int(before),
        lost=0,
        seconds=time.monotonic() - began,
    )
