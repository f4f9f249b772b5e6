"""Merges repeated log lines of a node's processes: the first is logged with its sender, the others
are counted. Pure."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from headrace.broker.peer_errors import kind

# The time for others to send the same line.
_WINDOW_S: Final = 10.0
_MOST_KNOWN: Final = 256
_MOST_WORDS: Final = 100


@dataclass(slots=True)
class _Repeated:
    logged_at: float
    sender: str
    text: str
    others: int = 0


class RepeatedLines:
    """Logs each line once in 10 s by `log(level, text)`. Lines that differ in numbers only are the
    same."""

    def __init__(self, log: Callable[[int, str], None]) -> None:
        self._log = log
        self._known: dict[tuple[int, str], _Repeated] = {}

    def add(self, sender: str, level: int, text: str, now: float) -> None:
        key = level, kind(text)
        known = self._known.get(key)
        if known is not None:
            known.others += 1
            return
        if len(self._known) >= _MOST_KNOWN:
            self._flush(next(iter(self._known)))
        self._known[key] = _Repeated(now, sender, text)
        self._log(level, f"{sender}: {text}")

    def flush_due(self, now: float) -> None:
        """Logs how many more sent a line, once all had time to."""
        for key in [key for key, line in self._known.items() if now - line.logged_at > _WINDOW_S]:
            self._flush(key)

    def flush_all(self) -> None:
        for key in list(self._known):
            self._flush(key)

    def _flush(self, key: tuple[int, str]) -> None:
        line = self._known.pop(key)
        if line.others:
            words = " ".join(line.text[:_MOST_WORDS].split())
            times = f"{line.others} more time{'s' * (line.others > 1)}"
            self._log(key[0], f"{line.sender} and others, {times}: {words}")
