"""Trained steps a second, as a run's summary tells them."""

from collections.abc import Sequence

import pytest

from headrace.learner.progress import Progress


def rate(marks: Sequence[tuple[float, int]]) -> float:
    progress = Progress()
    for now, steps in marks:
        progress.trained_steps = steps
        progress.mark(now)
    return progress.rate()


@pytest.mark.parametrize(
    ("marks", "wanted"),
    [
        ([], 0.0),
        ([(5.0, 0)], 0.0),
        ([(5.0, 100), (5.0, 100)], 0.0),  # no time has gone by
        ([(5.0, 100), (7.0, 300)], 100.0),  # one stretch is all there is
        (
            [(0.0, 0), (10.0, 100), (25.0, 1000), (100.0, 16_000)],
            200.0,
        ),  # the first quarter is left out
        # It ended before the numbers were shown once: from its first step on.
        ([(0.0, 0), (0.05, 64), (0.25, 2064)], 10_000.0),
        ([(0.0, 0), (0.3, 64), (0.3, 64), (0.4, 1064)], 10_000.0),
    ],
)
def test_it_leaves_out_the_first_quarter_of_the_time(
    marks: list[tuple[float, int]], wanted: float
) -> None:
    assert rate(marks) == pytest.approx(wanted)


def test_marks_are_thinned_and_the_rate_stays() -> None:
    progress = Progress()
    for at in range(5000):
        progress.trained_steps = 7 * at
        progress.mark(float(at))
    assert progress.rate() == pytest.approx(7.0)
    assert len(vars(progress)["_marks"]) <= 512
