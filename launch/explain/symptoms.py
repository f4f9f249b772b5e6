"""Finds what looks wrong in learning for a reason that no figure tells: said last, and only where
nothing else is wrong with it. Pure functions of a run's figures."""

from collections.abc import Iterator
from typing import Final

from headrace.launch.explain.figures import Figures
from headrace.launch.explain.finding import Finding
from headrace.launch.explain.returns import Returns

# Steps trained on until values, and returns, must have moved: at least, and without a stop.steps.
_LEAST_FOR_VALUES: Final = 100_000
_LEAST_FOR_RETURNS: Final = 200_000
_LEAST_UNLIMITED: Final = 1_000_000
# Of what is first known of a run: beyond it returns may have risen before.
_FIRST_STEPS, _FIRST_VERSION = 10_000, 2
_PART: Final = 0.9  # of the lines in which something must be so, to be so all the time


def find(figures: Figures) -> list[Finding]:
    """Returns what looks wrong; [] = nothing does."""
    returns = Returns.of(figures)
    if figures.solved or returns.at_goal or returns.all_the_same or not returns.stay:
        return []
    first, steps = figures.lines[0], figures.lines[-1]["trained_steps"]
    if first["trained_steps"] > _FIRST_STEPS and first.get("version", steps) > _FIRST_VERSION:
        return []
    return [*_values(figures, steps), *_flat(figures, steps, returns.values[-1])]


def _values(figures: Figures, steps: float) -> Iterator[Finding]:
    explained, model = figures.late("explained_variance"), figures.run.model
    fail = explained and sum(one <= 0 for one in explained) >= _PART * len(explained)
    if fail and steps >= _LEAST_FOR_VALUES:
        first = "" if model.normalise_returns else "model.normalise_returns=true, "
        yield Finding(
            "values",
            "values explain nothing of the returns (explained variance"
            f" {figures.median('explained_variance'):.2g})",
            advice=f"try {first}a larger algorithm.value_coef or wider layers (model.hidden)",
        )


def _flat(figures: Figures, steps: float, now: float) -> Iterator[Finding]:
    limit = figures.run.stop.steps
    if steps >= (_LEAST_UNLIMITED if limit is None else max(_LEAST_FOR_RETURNS, limit // 2)):
        yield Finding(
            "flat",
            f"returns are flat ({now:.4g} after {steps:,.0f} steps)",
            advice="try more exploration (algorithm.entropy_coef), rewards on the way to the goal,"
            " or headrace search",
        )
