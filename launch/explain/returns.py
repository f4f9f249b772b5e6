"""Reads a run's learning curve: whether returns rise, stay or fall. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.launch.explain.figures import Figures


@dataclass(frozen=True, slots=True)
class Returns:
    """Holds the mean returns of a run, the first one first."""

    values: Sequence[float]  # at least one
    goal: float | None

    @classmethod
    def of(cls, figures: Figures) -> "Returns":
        return cls(figures.column("mean_return") or [0.0], figures.run.stop.return_)

    @property
    def first(self) -> float:
        return self.values[0]

    @property
    def last(self) -> float:
        """Returns the mean of the last quarter."""
        return _mean(self.values[-self._quarter :])

    @property
    def best(self) -> float:
        """Returns the best mean of an eighth of the run."""
        span, many = max(1, len(self.values) // 8), len(self.values)
        return max(_mean(self.values[at : at + span]) for at in range(many - span + 1))

    @property
    def at_goal(self) -> bool:
        return self.goal is not None and self.values[-1] >= self.goal

    @property
    def all_the_same(self) -> bool:
        """Tells whether there is nothing to learn, or nothing was found yet."""
        return len(set(self.values)) == 1

    @property
    def improve(self) -> bool:
        """Tells whether they rise from the first quarter to the last, or are at the goal."""
        before, spread = _mean(self.values[: self._quarter]), max(self.values) - min(self.values)
        rises = self.last - before > max(0.5 * spread, 0.2 * abs(before))
        return self.at_goal or (spread > 0 and rises)

    @property
    def stay(self) -> bool:
        """Tells whether they are about where they began."""
        risen = self.last - self.first
        return risen <= 0.5 * (self.best - self.first) or risen <= 0.2 * abs(self.first)

    @property
    def decay(self) -> bool:
        """Tells whether more than half of what was learnt, and that was much, was lost again."""
        learnt = self.best - self.first
        much = learnt > 0.5 * max(abs(self.first), abs(self.best))
        return much and self.best - self.last > 0.5 * learnt and not self.at_goal

    @property
    def _quarter(self) -> int:
        return max(1, len(self.values) // 4)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
