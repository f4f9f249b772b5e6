"""Judges a run while it trains, by what its peers tell the broker."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from headrace.broker.decimated_curve import DecimatedCurve
from headrace.broker.histograms import Buckets
from headrace.launch.config.run_file import Run
from headrace.launch.explain import explain, figures
from headrace.launch.explain.figures import Figures

_MOST_FOUND: Final = 5
_MOST_WORDS: Final = 400  # of a line


class _Look(NamedTuple):
    """Holds what was told at one time."""

    learner: Mapping[str, float]  # a line of the history
    samplers: Mapping[str, float]  # totals of all samplers since the broker began
    used: int  # times that a sampler began to act with a version
    used_s: float  # all the seconds that this took since the version was at the broker


class WatchedRun:
    """Keeps some of its looks, however long the run is, and says what the rules say of them."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._looks: DecimatedCurve[_Look] = DecimatedCurve()  # by the steps trained on
        self._outcomes: Mapping[str, float] = {}  # at the last look
        self._weights_bytes = 0.0  # the same

    def look(
        self, status: Mapping[str, Any], samplers: Mapping[str, float], ready: Buckets
    ) -> None:
        """Takes in what a broker's status tells of training, its totals of all samplers, and the
        seconds from a version's arrival there until a sampler acts with it."""
        self._outcomes = figures.numbers(status["outcomes"])
        self._weights_bytes = float(status["weights_bytes"])
        for learner in status["learners"][:1]:  # every rank tells the same
            line = figures.numbers(learner)
            if figures.tells_of_training(line):
                now = _Look(line, dict(samplers), sum(ready.counts), ready.total)
                self._looks.add(line["trained_steps"], now)

    def lines(self) -> list[str]:
        """Returns what holds the run back, the first thing first, and where the time goes."""
        now = self.figures()
        found = explain.findings(now)[:_MOST_FOUND]
        return [line[:_MOST_WORDS] for line in explain.lines(now, found)]

    def figures(self) -> Figures:
        """Returns what is known of the run. Of its cores nothing: its processes may be anywhere."""
        looks = [look for _, look in self._looks.points()]
        if not looks:
            return Figures(self._run, [], {}, {})
        first, last, lines = looks[0], looks[-1], [look.learner for look in looks]
        seconds = max(0.0, last.learner["t"] - first.learner["t"])
        grown = {
            name: total - first.samplers.get(name, 0.0) for name, total in last.samplers.items()
        }
        return Figures(
            run=self._run,
            lines=lines,
            learner=figures.learner_shares(lines),
            samplers=figures.sampler_shares(figures.sampler_seconds(grown)),
            outcomes=self._outcomes,
            step_s=grown.get("env_s", 0.0) / max(1.0, grown.get("env_steps", 0.0)),
            rate=figures.training_rate(lines),
            seconds=seconds,
            line_s=(last.used_s - first.used_s) / max(1, last.used - first.used),
            unroll_bytes_s=grown.get("bytes", 0.0) / max(1.0, seconds),
            weights_bytes=self._weights_bytes,
        )
