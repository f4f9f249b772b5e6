"""The returns of each policy of a population, and the table of them, population.csv."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from headrace.learner.batches.unroll_ends import EpisodeEnds

TABLE: Final = "population.csv"
_PART = 4  # of the policies so many-th are replaced, by as many that are better
# The share of an episode in its policy's mean, once there were many: about the latest 20 count.
_SHARE = 0.1
_COLUMNS = ("policy", "episodes", "steps", "mean_return", "parent")


class PolicyReturns:
    """Sums up the training episodes of each policy."""

    def __init__(self, policies: int) -> None:
        self._episodes = np.zeros(policies, np.int64)
        self._steps = np.zeros(policies, np.int64)  # of these episodes
        self._means = np.zeros(policies)  # return; 0 where no episode has ended
        self._parents = np.full(policies, -1, np.int64)  # whose copy it was last; -1 = nobody's
        self.replaced_at = 0  # trained steps of all, when policies were compared last

    def add(self, unrolls: Sequence[EpisodeEnds]) -> None:
        """Takes in the episodes that are reported with these unrolls."""
        for unroll in unrolls:
            for policy, (_, returned, length) in zip(unroll.players, unroll.episodes, strict=False):
                if policy >= 0:
                    self._add(policy, returned, length)

    def _add(self, policy: int, returned: float, length: int) -> None:
        self._episodes[policy] += 1
        self._steps[policy] += length
        share = max(_SHARE, 1 / self._episodes[policy])
        self._means[policy] += share * (returned - self._means[policy])

    @property
    def means(self) -> NDArray[np.float64]:
        """Returns each policy's mean return; not a number where no episode has ended."""
        return np.where(self._episodes > 0, self._means, np.nan)

    def replace(self, rng: np.random.Generator, *, at: int) -> list[tuple[int, int]]:
        """Lets the worst quarter of those that have ended an episode go on as some of the best
        quarter, after `at` trained steps; returns these pairs."""
        self.replaced_at = at
        known = np.flatnonzero(self._episodes)
        order = known[np.argsort(self._means[known], kind="stable")]
        count = max(1, len(order) // _PART) if len(order) > 1 else 0
        worst, best = order[:count], order[len(order) - count :]
        pairs = zip(worst.tolist(), rng.permutation(best).tolist(), strict=True)
        found = [(one, better) for one, better in pairs if self._means[one] < self._means[better]]
        for one, better in found:
            self._means[one], self._parents[one] = self._means[better], better
        return found

    def summary(self) -> dict[str, Any] | None:
        """Returns the best policy, and how the others compare; None = there is no population, or
        none of it has ended an episode."""
        means = self.means
        if not np.isfinite(means).any():
            return None
        best = int(np.nanargmax(means))
        least, middle, most = np.nanquantile(means, (0.0, 0.5, 1.0)).round(6).tolist()
        played = int((self._episodes > 0).sum())
        return {
            "policies": len(means),
            "played": played,
            "best": best,
            "best_return": most,
            "median_return": middle,
            "least_return": least,
        }

    def table(self, factors: Mapping[str, Sequence[float]]) -> str:
        """Returns population.csv: a line for each policy. `factors`: of settings, by name."""
        return "".join(f"{line}\n" for line in self._lines(factors))

    def _lines(self, factors: Mapping[str, Sequence[float]]) -> Iterator[str]:
        yield ",".join((*_COLUMNS, *factors))
        for policy, row in enumerate(zip(*factors.values(), strict=True)):
            mean = f"{self._means[policy]:.6g}" if self._episodes[policy] else ""
            parent = "" if self._parents[policy] < 0 else self._parents[policy]
            shown = (policy, self._episodes[policy], self._steps[policy], mean, parent)
            yield ",".join((*map(str, shown), *(f"{factor:.6g}" for factor in row)))

    def state(self) -> list[list[float]]:
        """Returns plain data for the checkpoint."""
        told = [self._episodes, self._steps, self._means]
        if self.replaced_at:  # checkpoints of before there were replacements lack it
            told += [self._parents, np.array([self.replaced_at])]
        return [[*map(float, one)] for one in told]

    def restore(self, state: Sequence[Sequence[float]]) -> None:
        episodes, steps, means, *replaced = state
        self._episodes = np.array(episodes, np.int64)
        self._steps = np.array(steps, np.int64)
        self._means = np.array(means, np.float64)
        parents, (at,) = replaced or ([-1] * len(means), [0])
        self._parents, self.replaced_at = np.array(parents, np.int64), int(at)
