"""A learner by hand that is stopped and started again, as whoever keeps it alive would."""

import headrace
from headrace.launch.config import run_file
from tests.system.conftest import Place, until


def test_a_learner_goes_on_by_its_own_settings_and_ends_when_there_is_nothing_left(
    place: Place,
) -> None:
    broker, actor = place.broker(), place.actor()
    first = place.learner("--set", "learner.lr=1e-5", "--set", "learner.progress_s=0.05")
    first.says("learner is starting: run small, impala on CartPole-v1, device cpu")
    until(lambda: len(place.history()) > 3, "history")
    first.says(r"version \d+: \d+ steps, \d+/s, return \d+\.\d")
    assert first.term() == 0, first.text()
    points = len(place.history())

    second = place.learner("--resume", "--set", "stop.steps=20000", "--set", "learner.lr=2e-5")
    assert second.ends() == 0, second.text()
    assert "continues with another learner.lr: 1e-05 -> 2e-05" in second.text()
    assert second.text().count("continues with another") == 2  # and stop.steps
    assert r"steps of 20000 \(" not in second.text()
    second.says(r"version \d+: \d+ steps of 20000 \(\d+ %\), ")
    times = [line["t"] for line in place.history()]
    assert times == sorted(times)
    assert all(line["lr"] < 1.5e-5 for line in place.history()[:points] if "lr" in line)
    assert {line["lr"] for line in place.history()[points:] if "lr" in line} == {2e-5}
    assert actor.ends() == 0, actor.text()  # the run is over
    assert broker.term() == 0, broker.text()

    # The folder is one that every command can read.
    now = run_file.load(str(place.out / "run.toml"))
    assert (now.learner.lr, now.stop.steps) == (2e-5, 20000)
    assert len(list(place.out.glob("starts/[0-9]*.toml"))) == 2
    action, _ = headrace.load_policy(place.out).act([0.0, 0.0, 0.0, 0.0])
    assert action in (0, 1)
    report = place.headrace("report", str(place.out))
    assert report.ends() == 0, report.text()

    # Nothing is left to do; there is not even a broker.
    third = place.learner("--resume")
    assert third.ends() == 0, third.text()
    assert "run is complete: 200" in third.text()
    assert len(list(place.out.glob("starts/[0-9]*.toml"))) == 2
    refused = place.learner("--resume", "--set", "model.hidden=[8]")
    assert refused.ends() == 2
    assert "model.hidden: [16] there, [8] here" in refused.text()
    place.nothing_is_left()
