"""What totals say over time: rates are their differences. A total that falls began anew."""

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

_WINDOW_S: Final = 10.0
_MOST: Final = 64


def totals(status: Mapping[str, Any]) -> dict[str, float]:
    """Those of a broker's status that rates are taken of; what is absent is left out."""
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
    """Every rank says the total of all ranks."""
    said = [one["trained_steps"] for one in status.get("learners") or () if "trained_steps" in one]
    return max(said, default=None)


class Rates:
    """Of one broker's totals, over the last seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, dict[str, float]]] = deque(maxlen=_MOST)

    def see(self, status: Mapping[str, Any], at: float) -> bool:
        """True: these are another broker's totals than those before. `at`: when they came, unless
        the broker says how long it has been up."""
        now, values = float(status.get("uptime_s", at)), totals(status)
        other = False
        if self._seen:
            then, before = self._seen[-1]
            other = now < then or values.get("received", 0.0) < before.get("received", 0.0)
        if other:
            self._seen.clear()
        self._seen.append((now, values))
        while len(self._seen) > 2 and self._seen[1][0] <= now - _WINDOW_S:
            self._seen.popleft()
        return other

    def __call__(self, name: str) -> float | None:
        """A second; None = not known yet."""
        seen = [(at, values[name]) for at, values in self._seen if name in values]
        for at in range(len(seen) - 1, 0, -1):
            if seen[at][1] < seen[at - 1][1]:
                seen = seen[at:]
                break
        if len(seen) < 2 or seen[-1][0] <= seen[0][0]:
            return None
        return (seen[-1][1] - seen[0][1]) / (seen[-1][0] - seen[0][0])
