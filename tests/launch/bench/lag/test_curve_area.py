"""Areas under learning curves, against sums done by hand."""

import pytest

from headrace.launch.bench.lag.curve_area import compare, curve
from headrace.launch.one_process.lagged_source import Score


def test_a_bin_is_the_mean_of_its_episodes_and_an_empty_one_repeats_the_one_before() -> None:
    scores = [Score(0, 10.0), Score(39, 30.0), Score(80, 50.0), Score(1000, 9999.0)]
    found = curve(scores, steps=1000, start=7.0)  # 25 bins of 40 steps
    assert found.tolist() == [20.0, 20.0, *[50.0] * 23]


def test_a_curve_begins_with_what_the_first_weights_play() -> None:
    assert curve([], steps=1000, start=7.0).tolist() == [7.0] * 25


def constant(value: float) -> list[Score]:
    """A run that plays 10 with its first weights, and `value` with all others."""
    return [Score(0, 10.0), *(Score(at, value) for at in range(40, 1000, 40))]


def test_the_loss_is_the_share_of_the_area_above_the_first_weights() -> None:
    runs = {0: [constant(110.0)] * 3, 8: [constant(60.0)] * 3}
    base, late = compare(runs, steps=1000)
    assert (base["lag"], late["lag"]) == (0, 8)
    assert base["area"] == pytest.approx(100 * 24 / 25)
    assert base["loss"] == [0.0, 0.0, 0.0]
    assert late["area"] == pytest.approx(50 * 24 / 25)
    assert late["loss"] == [0.5, 0.5, 0.5]  # runs that are all alike have no interval
    assert (late["end"], late["worst_end"]) == (60.0, 60.0)


def test_a_run_that_ends_below_half_of_the_median_of_the_first_lag_has_failed() -> None:
    good = [constant(110.0)] * 3
    _, late = compare({0: good, 8: [constant(59.0), constant(61.0), constant(10.0)]}, steps=1000)
    assert late["failed"] == 2
    assert late["worst_end"] == 10.0


def test_the_interval_holds_the_loss_and_is_the_same_again() -> None:
    runs = {0: [constant(90.0 + n) for n in range(20)], 2: [constant(50.0 + n) for n in range(20)]}
    loss, low, high = compare(runs, steps=1000)[1]["loss"]
    assert low < loss < high
    assert compare(runs, steps=1000)[1]["loss"] == [loss, low, high]
