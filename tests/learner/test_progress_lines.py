"""Lines between a learner's start and its end."""

import logging

import pytest

from headrace.learner.batches.step_ages import UnrollAge
from headrace.learner.batches.unroll_ends import EpisodeEnds
from headrace.learner.progress import Progress, ProgressLines


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return found


def test_a_line_when_it_is_time(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    progress = Progress()
    progress.trained_steps = 1000  # a run that is continued
    lines = ProgressLines(10.0, steps=4000, progress=progress, at=50.0)
    progress.step(version=7, steps=600, ages=[UnrollAge(1, 0, 300), UnrollAge(2, 2, 300)])
    lines.log_when_due(progress, 59.9)
    assert said(caplog) == []
    lines.log_when_due(progress, 60.0)
    assert said(caplog) == [
        "version 7: 1600 steps of 4000 (40 %), 60/s, return unknown yet, lag 1.50, 60 s"
    ]
    progress.add_episodes(1, [EpisodeEnds(1, 0, 1, 32, ((0, 20.25, 20),))])
    lines.log_when_due(progress, 69.0)
    lines.log_when_due(progress, 71.0)
    assert said(caplog) == [
        "version 7: 1600 steps of 4000 (40 %), waits for unrolls, return 20.2, lag 1.50, 71 s"
    ]


def test_without_a_limit_and_not_at_all(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    progress = Progress()
    lines = ProgressLines(10.0, steps=None, progress=progress, at=0.0)
    progress.step(version=1, steps=600, ages=[UnrollAge(0, 0, 600)])
    lines.log_when_due(progress, 20.0)
    assert said(caplog)[0].startswith("version 1: 600 steps, 30/s, ")
    silent = ProgressLines(0.0, steps=None, progress=progress, at=0.0)
    silent.log_when_due(progress, 1e9)
    assert said(caplog) == []
