"""The figures that a learner sends of its training, in words: metrics, speed, where time goes."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from headrace.broker import sanitise

_METRIC: Final = "metric."
_PHASE: Final = "time_"
_MOST_METRICS: Final = 16
_MOST_NAME: Final = 40


class Metric(NamedTuple):
    """Holds the means of one of env.metrics."""

    name: str
    training: float | None  # None = not known
    evaluation: float | None

    def words(self, goal: str = "", evaluation_goal: str = "") -> str:
        """Returns the means; behind that of training or of evaluations stands its goal."""
        known = "none yet" if self.training is None else f"{self.training:,.4g}"
        if self.evaluation is None and not evaluation_goal:
            return f"{known}{goal}"
        evaluated = "none yet" if self.evaluation is None else f"{self.evaluation:,.4g}"
        return f"{known}{goal}, evaluation {evaluated}{evaluation_goal}"


def metrics(status: Mapping[str, Any]) -> list[Metric]:
    """Returns the metrics that learners and evaluators tell of, a few of those that they may
    make up."""
    training, evaluation = dict(_of(status.get("learners"))), dict(_of(status.get("evaluators")))
    names = [*training, *(name for name in evaluation if name not in training)][:_MOST_METRICS]
    return [
        Metric(sanitise.words(name, _MOST_NAME), training.get(name), evaluation.get(name))
        for name in names
    ]


def _of(peers: Any) -> Iterator[tuple[str, float]]:
    for peer in peers or ():
        for name, value in peer.items() if isinstance(peer, dict) else ():
            if name.startswith(_METRIC) and isinstance(value, int | float):
                yield name.removeprefix(_METRIC), value


def time_words(learner: Mapping[str, Any]) -> str:
    """Returns where the learner's time goes, the most first; "" = it has not said."""
    shares = {
        sanitise.words(name.removeprefix(_PHASE), 20): value
        for name, value in learner.items()
        if name.startswith(_PHASE) and isinstance(value, int | float)
    }
    ordered = sorted(shares.items(), key=lambda one: -one[1])
    return ", ".join(f"{name} {100 * share:.0f} %" for name, share in ordered if share >= 0.005)
