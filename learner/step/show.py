"""Numbers for people: in metrics, in the run's history, and for those who watch."""

import logging
import time

from headrace.learner.history.line import for_beats, line, rounded
from headrace.learner.train_parts import TrainParts
from headrace.learner.train_state import append_history

log = logging.getLogger(__name__)


def show(parts: TrainParts, stats: dict[str, float]) -> None:
    """Shows numbers to people: in metrics, the run's history, and to those who watch."""
    progress = parts.progress
    ages = progress.step_ages.figures()
    progress.step_ages.clear()
    steps = progress.metrics.steps()
    parts.metrics.show(progress, stats, ages, steps, time.time())
    pace = parts.pace.since(parts.clock(), progress.trained_steps, parts.metrics.phase_seconds())
    figures = pace | ages | stats | parts.curriculum.figures()
    told = line(progress, parts.clock(), figures)
    parts.feed.stats(for_beats(told))
    if parts.ranks.rank == 0:
        if news := progress.news():
            log.warning(news)
        append_history(parts, told | rounded(steps))
