"""Trains one trial of a search: the run with some settings, once for each seed, one after another.
What has no chance to be the best any more is given up."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import optuna
from optuna.trial import TrialState

from headrace.launch.comparison import training
from headrace.launch.comparison.training import Training
from headrace.launch.config import starts
from headrace.launch.results import learning_curve
from headrace.launch.search.metric import Metric

_PATIENCE = 1.5  # times the best, after which a trial that has not got there is given up
_OWN_ENDS = ("return", "steps", "seconds", "diverged")


class Outcome(NamedTuple):
    """Says how a trial ended."""

    state: TrialState
    value: float | None
    why: str  # in words, where it did not get there


@dataclass(slots=True)
class SearchTrial:
    """Holds one trial while it trains."""

    trial: optuna.trial.Trial
    run: str
    sets: tuple[str, ...]  # the search's and its own
    seeds: Sequence[int]
    metric: Metric
    folder: Path
    training: Training = field(init=False)  # the one that trains now
    values: list[float] = field(default_factory=list)  # of the seeds that have ended
    cost: float = 0.0  # of the seeds that have ended
    rungs: list[float] = field(default_factory=list)  # those still ahead

    def start(self) -> None:
        """Starts the next seed, or goes on with it; one that has ended already is left alone."""
        seed = self.seeds[len(self.values)]
        folder = self.folder / f"seed-{seed}"
        sets = (*self.sets, f"run.seed={seed}")
        self.training = Training(self.run, sets, folder, evaluate=self.metric.evaluates)
        self.rungs = [] if self.values else self.metric.rungs
        if not self._over():
            self.training.start()

    def look(self, best: float | None) -> Outcome | None:
        """Returns how it ended; None = it trains. `best`: of all trials so far."""
        out, why = self.training.out, ""
        if not self.training.ended:
            why = self._hopeless(best)
            if not why:
                return None
            training.end([self.training])
        value = self.metric.value(out)
        self.cost += self.metric.cost(out)
        if value is None:
            return self._missed(why)
        self.values.append(value)
        if len(self.values) < len(self.seeds):
            self.start()
            return None
        return Outcome(TrialState.COMPLETE, statistics.fmean(self.values), "")

    def _over(self) -> bool:
        out = self.training.out
        if not (out / starts.RUN).is_file():
            return False
        return bool(starts.finished(starts.load_kept(out).stop, out))

    def _hopeless(self, best: float | None) -> str:
        """Returns why it is given up; "" = it may still be the best."""
        out = self.training.out
        if self.metric.less:
            most = math.inf if best is None else _PATIENCE * best
            unit = self.metric.unit
            return f"given up after {most:.4g}{unit}" if self.metric.spent(out) > most else ""
        if self.rungs:
            score = self.metric.score_at(out, self.rungs[0])
            if score is not None:
                steps = self.rungs.pop(0)
                self.trial.report(score, len(self.metric.rungs) - len(self.rungs))
                if self.trial.should_prune():
                    return f"given up at {steps:,.0f} steps with {score:.4g}"
        return ""

    def _missed(self, why: str) -> Outcome:
        """Returns how a trial ended that has no value: given up, beyond the limits, or failed."""
        if not why:
            reason = learning_curve.summary(self.training.out).get("stop_reason")
            if self.metric.too_early(self.training.out):
                why = f"ended before there was any {self.metric.name}"
                return Outcome(TrialState.FAIL, None, why)
            if reason not in _OWN_ENDS:
                return Outcome(
                    TrialState.FAIL, None, f"has no {self.metric.name}; see {self.training.log}"
                )
            why = "diverged" if reason == "diverged" else "did not get there"
        if self.metric.less:
            gap = self.metric.gap(self.training.out)
            if gap is not None:  # the nearer, the better: the sampler learns from it, too
                self.trial.report(gap, 1)
                why = f"{why}, {gap:.4g} below the goal"
        return Outcome(TrialState.PRUNED, None, why)
