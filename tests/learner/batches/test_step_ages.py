"""Checks the ages of steps when they are trained."""

import pytest

from headrace.learner.batches.step_ages import StepAges, UnrollAge


def test_the_steps_of_an_unroll_lie_between_its_oldest_and_its_newest() -> None:
    ages = StepAges()
    ages.add([UnrollAge(62, 0, 20)])
    figures = ages.figures()
    assert figures["lag_mean"] == pytest.approx(31.0, abs=0.5)
    assert figures["lag_p99"] == 62


def test_one_old_unroll_of_many_is_seen_by_the_percentile_alone() -> None:
    ages = StepAges()
    ages.add([UnrollAge(2, 2, 20)] * 49)
    ages.add([UnrollAge(90, 90, 20)])
    figures = ages.figures()
    assert figures["lag_mean"] == pytest.approx((49 * 2 + 90) / 50)
    assert figures["lag_p99"] == 90


def test_nothing_was_trained_since() -> None:
    ages = StepAges()
    assert ages.figures() == {}
    ages.add([UnrollAge(1, 1, 20)])
    ages.clear()
    ages.add([])
    assert ages.figures() == {}


def test_what_a_sampler_makes_up_costs_no_memory() -> None:
    ages = StepAges()
    ages.add([UnrollAge(2**60, -5, 1)])
    assert 0 <= ages.figures()["lag_mean"] <= ages.figures()["lag_p99"] <= 10_000


def test_an_unroll_weighs_by_its_steps() -> None:
    """One that ended early is not as much as a whole one."""
    ages = StepAges()
    ages.add([UnrollAge(1, 1, 99), UnrollAge(7, 7, 1)])
    assert ages.figures() == {"lag_mean": pytest.approx(1.06), "lag_p99": 1}
