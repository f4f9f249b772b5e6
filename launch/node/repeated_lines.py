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
class _Verse:
    said: float
    who: str
    text: str
    others: int = 0


class Chorus:
    """Logs each line once in 10 s by `log(level, text)`. Lines that differ in numbers only are the
    same."""

    def __init__(self, log: Callable[[int, str], None]) -> None:
        self._log = log
        self._known: dict[tuple[int, str], _Verse] = {}

    def says(self, who: str, level: int, text: str, now: float) -> None:
        key = level, kind(text)
        known = self._known.get(key)
        if known is not None:
            known.others += 1
            return
        if len(self._known) >= _MOST_KNOWN:
            self._ends(next(iter(self._known)))
        self._known[key] = _Verse(now, who, text)
        self._log(level, f"{who}: {text}")

    def sweep(self, now: float) -> None:
        """Logs how many more sent a line, once all had time to."""
        for key in [key for key, verse in self._known.items() if now - verse.said > _WINDOW_S]:
            self._ends(key)

    def end(self) -> None:
        for key in list(self._known):
            self._ends(key)

    def _ends(self, key: tuple[int, str]) -> None:
        verse = self._known.pop(key)
        if verse.others:
            words = " ".join(verse.text[:_MOST_WORDS].split())
            times = f"{verse.others} more time{'s' * (verse.others > 1)}"
            self._log(key[0], f"{verse.who} and others, {times}: {words}")
