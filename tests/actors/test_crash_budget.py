"""Restarted environments: what the operator reads, and when it is enough."""

import logging

import pytest

from headrace.actors.crash_budget import CrashBudget
from headrace.actors.envs.convert import EnvError
from headrace.actors.stepping.stepper import EnvFailure

CRASH = EnvFailure(
    3, "step", 17, 240, "Traceback (most recent call last):\n  x\nValueError: no arm\n"
)


def test_the_budget_is_for_any_hour() -> None:
    budget = CrashBudget("Arm-v0", per_hour=2)
    for now in (0.0, 10.0, 3601.0, 3611.0, 9000.0):
        budget.spend(CRASH, now=now)
    budget.spend(CRASH, now=9001.0)
    with pytest.raises(EnvError) as raised:
        budget.spend(CRASH, now=9002.0)
    assert str(raised.value) == (
        "Arm-v0 failed 3 times within an hour, more than actor.crashes_per_hour = 2; the last time:"
        " step, environment 3, seed 17, after 240 steps: ValueError: no arm"
    )
    assert budget.count == {"step": 7}


def test_a_traceback_is_shown_once_and_repetitions_are_lines(
    caplog: pytest.LogCaptureFixture,
) -> None:
    budget = CrashBudget("Arm-v0", per_hour=100)
    other = CRASH._replace(text="Traceback\nKeyError: 'hand'\n")
    with caplog.at_level(logging.ERROR):
        for failure in (CRASH, CRASH, other):
            budget.spend(failure, now=1.0)
    said = [record.getMessage() for record in caplog.records]
    assert [record.__dict__["traceback"].splitlines()[-1:] for record in caplog.records] == [
        ["ValueError: no arm"],
        [],
        ["KeyError: 'hand'"],
    ]
    for line in said:
        assert "environment 3, seed 17, after 240 steps" in line


def test_no_budget_means_the_first_failure_ends_it() -> None:
    with pytest.raises(EnvError, match="failed 1 times"):
        CrashBudget("Arm-v0", per_hour=0).spend(CRASH, now=0.0)
