"""Makes a line of the run's history: the numbers that people are shown of training."""

from collections.abc import Mapping
from typing import Any

from headrace.learner.progress import Progress

# Of a beat's header (4 KiB), beside the leases that it lists; and of a figure beside its name.
_MOST_BYTES, _FIGURE_BYTES = 2400, 12


class Pace:
    """Says how fast training was, and where the learner's time went, since it was last asked."""

    def __init__(self) -> None:
        self._at: float | None = None  # when it was asked, in seconds; None = not yet
        self._trained = 0  # steps, at that time
        self._spent: dict[str, float] = {}  # seconds by phase, at that time

    def since(self, at: float, trained: int, spent: Mapping[str, float]) -> dict[str, float]:
        """Returns steps a second and shares of the time; {} the first time, and without a step."""
        before, passed = self._at, at - (self._at or 0.0)
        if before is not None and trained == self._trained:
            return {}
        found = {}
        if before is not None and passed > 0:
            found = {"steps_per_s": (trained - self._trained) / passed}
            for phase, seconds in spent.items():
                share = (seconds - self._spent.get(phase, 0.0)) / passed
                found[f"time_{phase}"] = min(1.0, max(0.0, share))
        self._at, self._trained, self._spent = at, trained, dict(spent)
        return found


def line(progress: Progress, at: float, figures: Mapping[str, float]) -> dict[str, Any]:
    """Returns the line without the steps of metrics; `at`: the run's clock."""
    means = {f"metric.{name}": mean for name, mean in progress.metrics.means.items()}
    length = progress.score.mean_length
    return {
        "t": round(at, 3),
        "version": progress.version,
        "trained_steps": progress.trained_steps,
        "episodes": progress.episodes,
        "mean_return": progress.mean_return(),
        "mean_length": None if length is None else round(length, 3),
        "lag": progress.lag()["mean"],
        **rounded(means),
        **rounded(figures),
    }


def for_beats(told: Mapping[str, Any]) -> dict[str, float]:
    """Returns the numbers of a line that every beat carries: the first that fit into its header,
    for a loss of the user's own may return any number of figures."""
    found, size = {}, 0
    for name, value in told.items():
        size += len(name.encode()) + _FIGURE_BYTES
        if value is not None and size <= _MOST_BYTES:
            found[name] = float(value)
    return found


def rounded(figures: Mapping[str, float]) -> dict[str, float]:
    """Returns them with six digits, those of 1 and more with six behind the point."""
    return {
        name: round(value, 6) if abs(value) >= 1 else float(f"{value:.6g}")
        for name, value in figures.items()
    }
