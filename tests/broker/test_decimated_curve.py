"""The curve for whoever looks, in bounded memory."""

import itertools

from headrace.broker.decimated_curve import DecimatedCurve


def test_a_short_curve_is_kept_whole() -> None:
    trend = DecimatedCurve[float]()
    for step in range(100):
        trend.add(step, step / 2)
        trend.add(step, 9.0)  # said again: a beat brings the same numbers
    assert trend.points() == [(step, step / 2) for step in range(100)]


def test_a_long_one_keeps_its_shape_and_its_bound() -> None:
    trend = DecimatedCurve[float]()
    for step in range(100_000):
        trend.add(step, float(step))
        assert len(trend.points()) <= 256
    points = trend.points()
    gaps = [after[0] - before[0] for before, after in itertools.pairwise(points)]
    assert points[0][0] == 0
    assert points[-1][0] > 99_000
    assert max(gaps) < 4 * min(gaps)


def test_steps_that_were_undone_leave_the_curve() -> None:
    trend = DecimatedCurve[float]()
    for step in (0, 10, 20, 30):
        trend.add(step, 1.0)
    trend.add(15, 2.0)
    assert trend.points() == [(0, 1.0), (10, 1.0), (15, 2.0)]
