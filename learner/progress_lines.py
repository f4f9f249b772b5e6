"""Lines of a learner's log between its start and its end."""

import logging

from learner.progress import Progress

log = logging.getLogger(__name__)


class ProgressLines:
    """Logs how far training is, every `every_s` seconds; 0 = never."""

    def __init__(self, every_s: float, *, steps: int | None, progress: Progress, at: float) -> None:
        self._every_s = every_s
        self._goal = steps  # None = there is no limit
        self._at = at  # of the latest line, by the run's clock
        self._trained = progress.trained_steps  # at the latest line

    def look(self, progress: Progress, at: float) -> None:
        """Logs a line when it is time; `at`: the run's clock."""
        if not self._every_s or at - self._at < self._every_s:
            return
        trained = progress.trained_steps
        rate = (trained - self._trained) / (at - self._at)
        share = "" if self._goal is None else f" of {self._goal} ({100 * trained // self._goal} %)"
        mean = progress.mean_return()
        log.info(
            "version %d: %d steps%s, %s, return %s, lag %.2f, %.0f s", progress.version, trained,
            share, f"{rate:.0f}/s" if trained > self._trained else "waits for unrolls",
            "unknown yet" if mean is None else f"{mean:.1f}", progress.lag()["mean"], at,
        )  # fmt: skip
        self._at, self._trained = at, trained
