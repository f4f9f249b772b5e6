"""Training that diverges ends once: with a line, a summary, a status, and no start in vain."""

import re

from tests.system.conftest import Place

HUGE = ("--set", "algorithm.reward_scale=1e30")
LINE = r"training has diverged at version 0: .*reward_scale"


def test_a_run_that_diverges_ends_the_first_time(place: Place) -> None:
    train = place.train("--stop-steps", "100000", *HUGE)
    assert train.ends() == 4, train.text()
    assert len(re.findall(LINE, train.text())) == 1
    assert "starting it again" not in train.text()
    assert "Traceback" not in train.text()
    summary = place.summary()
    assert (summary["stop_reason"], summary["trained_steps"]) == ("diverged", 0)
    assert re.match(LINE, summary["diagnosis"])
    assert place.history()
    assert not place.checkpoints()
    place.nothing_is_left()


def test_a_learner_that_diverged_is_not_started_in_vain(place: Place) -> None:
    """As a unit starts it: with --resume, and with what it was given before."""
    broker, actor = place.broker(*HUGE), place.actor()
    first = place.learner("--resume", *HUGE)
    assert first.ends() == 4, first.text()
    for _ in range(2):
        again = place.learner("--resume", *HUGE)
        assert again.ends() == 4, again.text()
        assert len(re.findall(LINE, again.text())) == 1
        assert "nothing was changed since" in again.text()
        assert "step skipped" not in again.text()
    changed = place.learner("--resume", *HUGE, "--set", "learner.lr=1e-5")
    assert changed.ends() == 4, changed.text()
    assert "step skipped" in changed.text()
    # It waits for a learner with other settings.
    assert actor.popen.poll() is None
    for process in (actor, broker):
        process.term()


def test_ranks_that_diverge_say_so_alike_and_are_not_started_in_vain(place: Place) -> None:
    broker, actors = place.broker(*HUGE), [place.actor(), place.actor()]
    first = place.two_ranks(*HUGE)
    assert [rank.ends() for rank in first] == [4, 4], first[0].text()
    for rank in first:
        assert len(re.findall("non-finite gradients: step skipped", rank.text())) <= 4
    again = place.two_ranks("--resume", *HUGE)
    assert [rank.ends() for rank in again] == [4, 4], again[0].text()
    assert "nothing was changed since" in again[0].text()
    for rank in again:
        assert "step skipped" not in rank.text()
    for rank in first + again:
        assert "a collective failed" not in rank.text()
    for process in (*actors, broker):
        process.term()
