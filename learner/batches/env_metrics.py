"""The metrics of env.metrics, added up over all unrolls that are trained on.

Two things are shown of each. Of episodes: the last value in each, a mean over the latest episodes
in which every environment weighs the same, as in the mean return. Of steps: the mean, the least and
the greatest of those trained on since the numbers were shown last, and how many they were; beside
them the last value of the latest episode.
"""

from collections.abc import Sequence

from headrace.learner.batches.unroll_ends import Lasts, StepSums, UnrollMetrics


class EnvMetrics:
    """Sums up the metrics of all that is trained on."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        self.names = tuple(names)
        self.means: dict[
            str, float
        ] = {}  # over the latest episodes; a name without one is left out
        self.whole: set[str] = set()  # metrics that every one of these episodes gave
        self._seen: Sequence[Sequence[Lasts]] = ()  # when last looked
        self._steps: dict[str, StepSums] = {}  # since they were shown last
        self._last: dict[str, float] = {}  # of the latest episode that had one, likewise
        self._known: set[str] = set()  # metrics that some step has given
        self._complained: set[str] = set()  # metrics that the log was told of

    def add_steps(self, unrolls: Sequence[UnrollMetrics]) -> None:
        """Takes in the steps that were trained on."""
        for unroll in unrolls:
            for _, lasts in unroll.episodes:
                told = zip(self.names, lasts, strict=False)
                self._last.update((name, last) for name, last in told if last is not None)
            for name, new in zip(self.names, unroll.steps, strict=False):
                if new.steps:
                    old = self._steps.get(name)
                    self._steps[name] = new if old is None else _joined(old, new)
        self._known.update(self._steps)

    def look(self, environments: Sequence[Sequence[Lasts]], *, whole: bool) -> None:
        """Computes the means of the latest episodes, by environment; `whole`: they are as many as
        are wanted of each environment."""
        if environments is self._seen:
            return
        self._seen = environments
        self.means.clear()
        self.whole.clear()
        for place, name in enumerate(self.names):
            found = [[one[place] for one in of_env] for of_env in environments]
            given = [[v for v in of_env if v is not None] for of_env in found]
            means = [sum(values) / len(values) for values in given if values]
            if means:
                self.means[name] = sum(means) / len(means)
                if whole and list(map(len, given)) == list(map(len, found)):
                    self.whole.add(name)

    def steps(self) -> dict[str, float]:
        """Returns mean, least, greatest and number of the steps since the last call, and the last
        value of the latest episode."""
        found = {f"metric.{name}.last": last for name, last in self._last.items()}
        for name, one in self._steps.items():
            found[f"metric.{name}.mean"] = one.total / one.steps
            found[f"metric.{name}.min"] = one.least
            found[f"metric.{name}.max"] = one.most
            found[f"metric.{name}.count"] = one.steps
        self._steps.clear()
        self._last.clear()
        return found

    def missing(self) -> str:
        """Returns a line for the log about a metric that no step has given yet; "" = none is
        new."""
        for name in self.names:
            if name not in self._known and name not in self._complained:
                self._complained.add(name)
                return (
                    f"env.metrics names {name!r}, and no step so far had it in info; see how the"
                    " environment spells it"
                )
        return ""


def _joined(one: StepSums, other: StepSums) -> StepSums:
    return StepSums(
        one.steps + other.steps,
        one.total + other.total,
        min(one.least, other.least),
        max(one.most, other.most),
    )
