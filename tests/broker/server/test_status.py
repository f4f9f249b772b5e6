"""The curve for whoever looks, and how weights spread."""

import itertools

from headrace.broker.server.propagation_times import PropagationTimes
from headrace.broker.server.status import DecimatedCurve


def test_a_short_curve_is_kept_whole() -> None:
    trend = DecimatedCurve()
    for step in range(100):
        trend.add(step, step / 2)
        trend.add(step, 9.0)  # said again: a beat brings the same numbers
    assert trend.points() == [(step, step / 2) for step in range(100)]


def test_a_long_one_keeps_its_shape_and_its_bound() -> None:
    trend = DecimatedCurve()
    for step in range(100_000):
        trend.add(step, float(step))
        assert len(trend.points()) <= 256
    points = trend.points()
    gaps = [after[0] - before[0] for before, after in itertools.pairwise(points)]
    assert points[0][0] == 0
    assert points[-1][0] > 99_000
    assert max(gaps) < 4 * min(gaps)


def test_steps_that_were_undone_leave_the_curve() -> None:
    trend = DecimatedCurve()
    for step in (0, 10, 20, 30):
        trend.add(step, 1.0)
    trend.add(15, 2.0)
    assert trend.points() == [(0, 1.0), (10, 1.0), (15, 2.0)]


def test_weights_are_timed_from_when_they_were_whole() -> None:
    spread = PropagationTimes()
    spread.first_used(7, now=5.0)  # of a broker before us: nobody knows when
    spread.published(8, 1000, now=10.0, wall=1e9)
    spread.first_used(8, now=10.015)
    spread.first_used(8, now=12.0)
    assert (spread.versions_published, spread.nbytes, spread.published_at) == (1, 1000, 1e9)
    assert sum(spread.ready.counts) == 2
    assert abs(spread.ready.total - 2.015) < 1e-9
    for version in range(9, 2000):
        spread.published(version, 1, now=20.0, wall=1e9)
    assert len(spread._whole) <= 256
