"""ctrl-C, SIGTERM and worse, at every moment of `headrace train`."""

import os
import signal
from collections.abc import Callable

import pytest

from tests.system.conftest import Place, Process, until

Moment = Callable[[Place, Process], object]


def children(place: Place, train: Process) -> int:
    return len(place.alive().keys() - {train.pid})


def before_the_first_fork(place: Place, _train: Process) -> None:
    until(place.out.exists, "the run's folder")


def the_broker_is_forked(place: Place, train: Process) -> None:
    until(lambda: children(place, train) >= 1, "one child")


def the_samplers_are_forked(place: Place, train: Process) -> None:
    until(lambda: children(place, train) >= 4, "all children")


def it_trains(place: Place, _train: Process) -> None:
    until(place.history, "history")


def mid_run(place: Place, _train: Process) -> None:
    place.trains(100)


# Each waits until `headrace train` has come so far.
MOMENTS: tuple[Moment, ...] = (
    before_the_first_fork,
    the_broker_is_forked,
    the_samplers_are_forked,
    it_trains,
    mid_run,
)


# It may still be importing then, so these begin with a fresh interpreter.
IMPORTING = frozenset({before_the_first_fork, the_broker_is_forked, the_samplers_are_forked})


def comes_to(moment: Moment, place: Place) -> Process:
    """Starts `headrace train`, and waits until it has come so far."""
    place.cold = moment in IMPORTING
    train = place.train()
    moment(place, train)
    return train


def check_end(place: Place, train: Process) -> None:
    assert train.ends(timeout_s=20) == 3, train.text()
    place.nothing_is_left()
    assert "Traceback" not in train.text()
    assert "ERROR" not in train.text()
    assert place.summary()["stop_reason"] == "stopped"
    account = place.account()
    assert (account.unaccounted(), account.untrue) == (0, 0)
    if account.outcomes["trained"]:
        assert place.checkpoints()
        resumed = int(place.checkpoints()[-1].name)
        assert resumed == place.summary()["version"]


@pytest.mark.parametrize("moment", MOMENTS)
def test_sigterm_ends_it_cleanly(place: Place, moment: Moment) -> None:
    train = comes_to(moment, place)
    train.signal(signal.SIGTERM)
    check_end(place, train)


@pytest.mark.parametrize("moment", [before_the_first_fork, the_broker_is_forked, mid_run])
def test_ctrl_c_reaches_every_process_and_the_parent_decides(place: Place, moment: Moment) -> None:
    train = comes_to(moment, place)
    os.killpg(train.pid, signal.SIGINT)  # as a terminal does
    check_end(place, train)
    # The samplers were still told what became of their unrolls: nobody's broker left first.
    assert place.account().in_flight == 0


def test_a_second_ctrl_c_changes_nothing(place: Place) -> None:
    train = place.train()
    place.trains(50)
    for _ in range(3):
        os.killpg(train.pid, signal.SIGINT)
    check_end(place, train)


def test_a_signal_while_it_ends_by_itself_does_no_harm(place: Place) -> None:
    train = place.train("--stop-steps", "3000")
    until((place.out / "learner.json").exists, "the learner's report")
    train.signal(signal.SIGTERM)
    assert train.ends(timeout_s=20) in (0, 3), train.text()
    assert "Traceback" not in train.text()
    assert place.summary()["trained_steps"] >= 3000
    place.nothing_is_left()


@pytest.mark.parametrize("moment", [the_samplers_are_forked, mid_run])
def test_killing_the_parent_leaves_no_orphan(place: Place, moment: Moment) -> None:
    train = comes_to(moment, place)
    train.kill()
    until(lambda: not place.alive(), "the end of all children", timeout_s=12)
    account = place.account()
    assert (account.unaccounted(), account.untrue) == (0, 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_each_role_alone_ends_cleanly(place: Place, number: int) -> None:
    broker, learner, actor = place.broker(), place.learner(), place.actor()
    place.trains(20)
    for process in (actor, learner, broker):
        process.signal(number)
        assert process.ends(timeout_s=20) == 0, process.text()
        assert "Traceback" not in process.text()
    assert place.checkpoints()
    account = place.account()
    assert (account.unaccounted(), account.untrue, account.in_flight) == (0, 0, 0)
    place.nothing_is_left()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_roles_that_wait_for_a_broker_end_too(place: Place, number: int) -> None:
    learner, actor = place.learner(), place.actor()
    for process in (learner, actor):
        process.says("no broker answers", timeout_s=30)
    for process in (learner, actor):
        process.signal(number)
        assert process.ends(timeout_s=10) == 0, process.text()
        assert "Traceback" not in process.text()
