"""Rates as differences of totals over time. A total that falls was restarted from 0."""

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

_WINDOW_S: Final = 10.0
_MOST: Final = 64


def totals(status: Mapping[str, Any]) -> dict[str, float]:
    """Picks the totals of a broker's status that rates are computed from; absent ones are left
    out."""
    actors, samplers = status.get("actors") or {}, status.get("samplers") or {}
    found = {
        "received": status.get("received"),
        "version": status.get("version"),
        "env_steps": samplers.get("env_steps", actors.get("env_steps")),
        "bytes": actors.get("bytes"),
        "trained_steps": trained_steps(status),
        **{f"outcome_{name}": n for name, n in (status.get("outcomes") or {}).items()},
    }
    return {name: float(n) for name, n in found.items() if isinstance(n, int | float)}


def trained_steps(status: Mapping[str, Any]) -> float | None:
    """Returns the steps trained by all ranks, which every rank reports; None = no rank did."""
    said = [one["trained_steps"] for one in status.get("learners") or () if "trained_steps" in one]
    return max(said, default=None)


class Rates:
    """Computes the rates of one broker's totals over the last 10 seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, dict[str, float]]] = deque(maxlen=_MOST)
        self._inc: Any = None  # the broker's incarnation

    def update(self, status: Mapping[str, Any]) -> bool:
        """Adds the newest totals; returns True if the broker was restarted since the last ones."""
        now = float(status.get("uptime_s", 0.0))
        other = bool(self._seen) and status.get("inc") != self._inc
        if other:
            self._seen.clear()
        self._seen.append((now, totals(status)))
        self._inc = status.get("inc")
        while len(self._seen) > 2 and self._seen[1][0] <= now - _WINDOW_S:
            self._seen.popleft()
        return other

    def __call__(self, name: str) -> float | None:
        """Returns the rate of this total per second; None = not known yet."""
        seen = [(at, values[name]) for at, values in self._seen if name in values]
        for at in range(len(seen) - 1, 0, -1):
            if seen[at][1] < seen[at - 1][1]:
                seen = seen[at:]
                break
        if len(seen) < 2 or seen[-1][0] <= seen[0][0]:
            return None
        return (seen[-1][1] - seen[0][1]) / (seen[-1][0] - seen[0][0])
