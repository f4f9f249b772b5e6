"""The evaluations that a learner hears of in the broker's status. Pure; callers pass `now`."""

from typing import Any, Final

# Without an evaluator for this long it is said, and again after that.
_PATIENCE_S: Final = 20.0
_AGAIN_S: Final = 300.0


class HeardEvaluations:
    """Keeps the best mean of an evaluation, and tells when nobody evaluates."""

    def __init__(self, wanted: str = "mean", *, episodes: int, now: float) -> None:
        """Keeps that of the returns, or of what evaluators name `wanted`, as "metric.NAME"."""
        self.best: float | None = None  # None = no evaluation has counted yet
        self._name = "" if wanted == "mean" else f".{wanted}"
        self.since = 0  # evaluations of earlier versions are of another learner's weights
        self._episodes = episodes  # evaluations of fewer do not count
        self._quiet_until = now + _PATIENCE_S

    def hear(self, status: Any, now: float) -> str:
        """Takes in a status; returns a line for the log, "" = nothing to say."""
        said = status.get("evaluators") if isinstance(status, dict) else None
        there = [one for one in said if isinstance(one, dict)] if isinstance(said, list) else []
        # One that has not ended an evaluation yet has said nothing of it.
        counting = [one for one in there if one.get("episodes", self._episodes) >= self._episodes]
        for one in counting:
            best, version = (one.get(f"{name}{self._name}") for name in ("best", "best_version"))
            if isinstance(best, float) and isinstance(version, float) and version >= self.since:
                self.best = best if self.best is None else max(self.best, best)
        if counting:
            self._quiet_until = now + _PATIENCE_S
        if now < self._quiet_until:
            return ""
        self._quiet_until = now + _AGAIN_S
        if there:
            return (
                f"the evaluator plays fewer than evaluate.episodes = {self._episodes}:"
                " its evaluations do not count for stop.return"
            )
        return (
            "stop.metric is of evaluations, and no evaluator is connected: stop.return cannot be"
            " reached; start one with headrace evaluate"
        )
