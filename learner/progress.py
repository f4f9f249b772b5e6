"""The learner's counters, which are logged, shown and saved in every checkpoint."""

import itertools
import logging
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

from headrace.learner.batches.env_metrics import EnvMetrics
from headrace.learner.batches.policy_returns import PolicyReturns
from headrace.learner.batches.step_ages import StepAges, UnrollAge
from headrace.learner.batches.unroll_ends import EpisodeEnds
from headrace.learner.mean_return import LAST, MeanReturn

log = logging.getLogger(__name__)

# Larger lags count as this: a sampler's wrong version must not make every checkpoint larger.
_LARGEST_LAG = 10_000


class Progress:
    """Counts what one run has done; a resumed learner continues the counters."""

    def __init__(
        self, metrics: Sequence[str] = (), *, episodes: int = 0, population: int = 0
    ) -> None:
        """Begins at 0; `metrics` are those of env.metrics, `episodes` log.episodes, `population`
        env.population."""
        self.version = 0  # optimiser steps, and jumps over versions that a crash has used up
        self.learner_steps = 0
        self.trained_steps = 0  # live steps trained on
        self.trained_unrolls = 0  # of all ranks, as everything here
        self.uses = 0.0  # unrolls of all optimiser steps: those used again count again
        self.kl_coef: float | None = None  # adapted; None = still the configured one
        # Mean square, where algorithm.normalise_advantages keeps it running; None = of no step yet.
        self.advantage_square: float | None = None
        self.episodes = 0
        self.nonfinite = 0  # steps skipped because loss or gradient was not finite
        self.lags: Counter[int] = Counter()  # versions between acting and training, by unroll
        self.score = MeanReturn()  # what its episodes return
        self.population = PolicyReturns(population)  # and those of each policy
        # The best mean return of an evaluation; None = none, or stop.metric does not ask.
        self.evaluated: float | None = None
        self.solved_at_s: float | None = None
        self.solved_at_steps: int | None = None
        # Not saved: of the steps trained since the numbers were shown last.
        self.step_ages = StepAges()
        self.metrics = EnvMetrics(metrics)  # not saved either
        # Not saved: (group, column, return, length) of the latest that nobody was told of.
        self.ends = deque[tuple[int, int, float, int]](maxlen=episodes)
        # Not saved: this process's clock. (time, trained steps), thinned as it grows.
        self._marks: list[tuple[float, int]] = []

    def step(self, *, version: int, steps: int, ages: Sequence[UnrollAge]) -> None:
        """Counts a batch that was trained on; `ages`: of the unrolls of all ranks."""
        self.version = version
        self.trained_steps += steps
        self.trained_unrolls += len(ages)
        self.lags.update(min(max(lag, 0), _LARGEST_LAG) for lag, *_ in ages)
        self.step_ages.add(ages)

    def used(self, unrolls: float) -> None:
        """Counts an optimiser step on that many unrolls."""
        self.uses += unrolls

    def reuse(self) -> float:
        """Returns how often an unroll is used, on average."""
        return self.uses / self.trained_unrolls if self.trained_unrolls else 0.0

    def add_episodes(self, ended: int, unrolls: Sequence[EpisodeEnds]) -> None:
        """Counts the episodes that ended in this step's unrolls, and those reported with them."""
        self.episodes += ended
        self.score.add(unrolls, self.version)
        self.population.add(unrolls)
        if self.ends.maxlen:
            self.ends.extend((one.stream, *told) for one in unrolls for told in one.episodes)
        if self.metrics.names:
            self.metrics.add_steps([one.metrics for one in unrolls if one.metrics is not None])
            self.metrics.look(self.score.metrics, whole=self.score.whole)

    def mean_return(self) -> float | None:
        """Returns the mean of the latest episodes; None until every environment ended one."""
        return self.score.mean

    def reached(self, target: float | None, metric: str = "") -> bool:
        """Tells whether the mean return, or that metric's mean, is known well and as wanted."""
        mean, score = self.mean_of(metric), self.score
        whole = metric in self.metrics.whole if metric else score.whole
        return target is not None and whole and mean is not None and mean >= target

    def mean_of(self, metric: str) -> float | None:
        """Returns the mean of a metric over the latest episodes; of "" it is the mean return."""
        return self.metrics.means.get(metric) if metric else self.score.mean

    def news(self) -> str:
        """Returns a line for the log, once; "" = nothing new."""
        asked = self.metrics.missing() if self.score.told >= LAST else ""
        return self.score.news() or asked

    def add_evaluation(self, mean: float | None) -> None:
        """Takes in the best evaluation that was heard of; None = of none."""
        if mean is not None and (self.evaluated is None or mean > self.evaluated):
            self.evaluated = mean

    def solved(self, at_s: float) -> None:
        """Notes when the wanted return was reached, by the run's clock; the first time counts."""
        if self.solved_at_s is None:
            self.solved_at_s, self.solved_at_steps = at_s, self.trained_steps

    def mark(self, now: float) -> None:
        """Adds a point for the rate; at most 512 are kept, evenly."""
        self._marks.append((now, self.trained_steps))
        if len(self._marks) > 512:
            self._marks = self._marks[::2]

    def rate(self) -> float:
        """Returns trained steps a second, without the warm-up."""
        return steady_rate(self._marks)

    def lag(self) -> dict[str, float]:
        """Returns mean, 95th percentile and maximum, in versions."""
        total = sum(self.lags.values())
        if not total:
            return {"mean": 0.0, "p95": 0.0, "max": 0.0}
        below, p95 = 0, 0
        for p95 in sorted(self.lags):
            below += self.lags[p95]
            if below >= 0.95 * total:
                break
        mean = sum(lag * count for lag, count in self.lags.items()) / total
        return {"mean": round(mean, 3), "p95": float(p95), "max": float(max(self.lags))}

    def state(self) -> dict[str, Any]:
        """Returns plain data for the checkpoint."""
        plain = {k: v for k, v in vars(self).items() if isinstance(v, int | float) or v is None}
        return {
            **plain,
            "lags": [[lag, count] for lag, count in sorted(self.lags.items())],
            "score": self.score.state(),
            "population": self.population.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        own = dict(state)
        self.lags = Counter(dict(own.pop("lags")))
        self.score.restore(own.pop("score"))
        self.population.restore(own.pop("population", ([], [], [])))  # older ones lack it
        for key, value in own.items():
            setattr(self, key, value)


def steady_rate(marks: Sequence[tuple[float, float]]) -> float:
    """Returns what was counted a second, by (time, total), after the first quarter of the time,
    which is warm-up; of a run that ended within a moment, since the last mark before its end."""
    if len(marks) < 2:
        return 0.0
    *before, (last, _) = marks
    warm = before[0][0] + (last - before[0][0]) / 4
    start = next((at for at, (when, _) in enumerate(before) if when >= warm), len(before) - 1)
    totals = [total for _, total in marks[start:]]
    # A total that falls began at 0 again: a broker was started again.
    grown = sum(max(0.0, now - then) for then, now in itertools.pairwise(totals))
    seconds = last - marks[start][0]
    return grown / seconds if seconds > 0 else 0.0


class ProgressLines:
    """Logs how far training is, every `every_s` seconds; 0 = never."""

    def __init__(self, every_s: float, *, steps: int | None, progress: Progress, at: float) -> None:
        self._every_s = every_s
        self._goal = steps  # None = there is no limit
        self._at = at  # of the latest line, by the run's clock
        self._trained = progress.trained_steps  # at the latest line

    def log_when_due(self, progress: Progress, at: float) -> None:
        """Logs a line when it is time; `at`: the run's clock."""
        if not self._every_s or at - self._at < self._every_s:
            return
        trained = progress.trained_steps
        rate = (trained - self._trained) / (at - self._at)
        share = "" if self._goal is None else f" of {self._goal} ({100 * trained // self._goal} %)"
        mean = progress.mean_return()
        log.info(
            "version %d: %d steps%s, %s, return %s, lag %.2f, %.0f s",
            progress.version,
            trained,
            share,
            f"{rate:.0f}/s" if trained > self._trained else "waits for unrolls",
            "unknown yet" if mean is None else f"{mean:.1f}",
            progress.lag()["mean"],
            at,
        )
        self._at, self._trained = at, trained
