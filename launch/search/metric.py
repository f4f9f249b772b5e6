"""Reads what a search compares trials by, from the folders of their trainings.

evaluation, return               a score: more is better, after stop.steps steps
NAME, evaluation.NAME            another one, of env.metrics in training or in evaluations
time_to_return, steps_to_return  what it takes until stop.return is met: less is better
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.launch.config import run_file
from headrace.launch.results import learning_curve

_UNTIL_SOLVED = {"time_to_return": "solved_at_s", "steps_to_return": "solved_at_steps"}
_SO_FAR = {"time_to_return": "t", "steps_to_return": "trained_steps"}
_RUNGS = (0.25, 0.5)  # of stop.steps, at which scores are compared


@dataclass(frozen=True, slots=True)
class Metric:
    """Holds the metric's name, and the run's limits that it depends on."""

    name: str
    goal: float = 0.0  # stop.return, where it is what counts
    steps: int = 0  # stop.steps, after which scores are compared
    evaluates: bool = False  # an evaluator must play

    @property
    def less(self) -> bool:
        """Tells whether less is better."""
        return self.name in _UNTIL_SOLVED

    @property
    def unit(self) -> str:
        return {"time_to_return": " s", "steps_to_return": " steps"}.get(self.name, "")

    @property
    def cost_unit(self) -> str:
        return "steps" if self.name == "time_to_return" else "s"

    @property
    def sets(self) -> tuple[str, ...]:
        """Returns the settings by which trials are comparable: scores are of equal steps."""
        return () if self.less else ("stop.metric=training", "stop.return=none")

    @property
    def rungs(self) -> list[float]:
        """Returns the steps at which a trial is compared with what others had there."""
        return [] if self.less else [rung * self.steps for rung in _RUNGS]

    def value(self, out: Path) -> float | None:
        """Returns what an ended training reached; None = it did not get there."""
        summary = learning_curve.summary(out)
        if self.name in _UNTIL_SOLVED:
            return _number(summary, _UNTIL_SOLVED[self.name])
        if summary.get("stop_reason") != "steps":
            return None
        file, key = learning_curve.column(self.name)
        return _number(learning_curve.last(out / file, "t"), key)

    def too_early(self, out: Path) -> bool:
        """Tells whether a training without a score ended as it should, before there was one."""
        return not self.less and learning_curve.summary(out).get("stop_reason") == "steps"

    def cost(self, out: Path) -> float:
        """Returns what the value has cost: seconds; of seconds, steps."""
        name = "trained_steps" if self.name == "time_to_return" else "wall_s"
        return _number(learning_curve.summary(out), name) or 0.0

    def spent(self, out: Path) -> float:
        """Returns what a training has taken so far, of what counts until it is solved."""
        key = _SO_FAR[self.name]
        return _number(learning_curve.last(out / "history.jsonl", key), key) or 0.0

    def gap(self, out: Path) -> float | None:
        """Returns how far the best mean return so far is from the goal; None = there is none."""
        history = learning_curve.read(out / "history.jsonl")
        returns = [found for line in history if (found := _number(line, "mean_return")) is not None]
        return max(0.0, self.goal - max(returns)) if returns else None

    def score_at(self, out: Path, steps: float) -> float | None:
        """Returns the score once so many steps are trained; None = they are not, or it is not
        known yet."""
        file, key = learning_curve.column(self.name)
        line = learning_curve.last(out / file, "trained_steps")
        return None if (_number(line, "trained_steps") or 0.0) < steps else _number(line, key)


def choose(name: str, run: run_file.Run) -> Metric:
    """Returns the metric; ConfigError where the run cannot be compared by it."""
    known = (*learning_curve.known(run.env.metrics), *_UNTIL_SOLVED)
    if name not in known:
        raise run_file.ConfigError(f"--metric {name}: there are {', '.join(known)}")
    if name in _UNTIL_SOLVED:
        if run.stop.return_ is None:
            raise run_file.ConfigError(f"--metric {name} needs a goal: --set stop.return=..")
        if run.stop.steps is None and run.stop.seconds is None:
            raise run_file.ConfigError(f"--metric {name} needs a limit: --set stop.steps=..")
        evaluates = run.stop.metric == "evaluation"
        return Metric(name, goal=run.stop.return_, evaluates=evaluates)
    if run.stop.steps is None:
        raise run_file.ConfigError(
            f"--metric {name} compares runs of equal length: --set stop.steps=.."
        )
    file, _ = learning_curve.column(name)
    return Metric(name, steps=run.stop.steps, evaluates=file == learning_curve.EVALUATIONS)


def _number(table: dict[str, Any], key: str) -> float | None:
    found = table.get(key)
    fits = isinstance(found, int | float) and math.isfinite(found)
    return float(found) if fits and found is not None else None
