"""Limits how often the same line is logged. Pure; callers pass `now`."""

from typing import Final

_AGAIN_S: Final = 60.0
_MOST_LINES: Final = 256


class LineLimiter:
    """Lets each line into the log once a minute, and at most 256 different ones."""

    def __init__(self) -> None:
        self._logged: dict[str, float] = {}  # when, the longest ago first

    def allows(self, line: str, now: float) -> bool:
        """Tells whether the line may be logged now, and remembers that it was."""
        if now - self._logged.get(line, -_AGAIN_S) < _AGAIN_S:
            return False
        self._logged.pop(line, None)
        if len(self._logged) >= _MOST_LINES:
            oldest = next(iter(self._logged))
            if now - self._logged[oldest] < _AGAIN_S:
                return False  # too many different lines within a minute
            del self._logged[oldest]
        self._logged[line] = now
        return True

    def clear(self) -> None:
        """Forgets what was logged: each line may come again at once."""
        self._logged.clear()
