"""The line of the history: how fast training was, and what of it a beat can carry."""

import msgspec
import pytest

from headrace.broker.protocol.messages import MAX_ENTRIES, LearnerPing, encode
from headrace.learner.history import columns
from headrace.learner.history.line import Pace, for_beats, line, rounded
from headrace.learner.metrics import PHASES
from headrace.learner.progress import Progress


def test_pace_is_of_the_time_since_it_was_last_asked() -> None:
    pace = Pace()
    assert pace.since(10.0, 0, {"wait": 3.0}) == {}
    assert pace.since(12.0, 500, {"wait": 4.0}) == {"steps_per_s": 250.0, "time_wait": 0.5}
    assert pace.since(13.0, 500, {"wait": 5.0}) == {}  # nothing was trained
    assert pace.since(16.0, 900, {"wait": 5.0, "publish": 9.0}) == {
        "steps_per_s": 100.0,
        "time_wait": 0.25,
        "time_publish": 1.0,
    }


def test_every_phase_has_a_column() -> None:
    assert {f"time_{phase}" for phase in PHASES} < columns.COLUMNS.keys()


@pytest.mark.parametrize("own", [0, 10_000])
def test_a_beat_is_never_too_large(own: int) -> None:
    """encode() refuses a header above 4 KiB, which would end the learner."""
    progress = Progress([f"{number:040}" for number in range(16)])
    progress.metrics.means = dict.fromkeys(progress.metrics.names, 0.5)
    usual = dict.fromkeys((*columns.PACE, *columns.TRAINED), 0.25)
    told = line(progress, 1.0, usual | {f"a figure of my own, {n}": 0.125 for n in range(own)})
    sent = for_beats(told)
    held = tuple((2**50 + 2 * n, 2**50 + 2 * n + 1) for n in range(MAX_ENTRIES))
    encode(LearnerPing(2**62, 2**36, 2**53, 2**53, held, {**sent, "clock": 1e9}))
    assert {f"metric.{name}" for name in progress.metrics.names} < sent.keys()
    assert usual.keys() < sent.keys()
    assert len(msgspec.msgpack.encode(sent)) < 2400


def test_small_figures_keep_six_digits_and_large_ones_six_behind_the_point() -> None:
    told = {"a": 1.23456789e-9, "b": 0.0123456789, "c": 1234.56789012, "d": 0.0, "e": -2e-7 / 3}
    kept = {"a": 1.23457e-9, "b": 0.0123457, "c": 1234.56789, "d": 0.0, "e": -6.66667e-8}
    assert rounded(told) == kept
