"""Errors that peers report: those a peer has yet to send, and those the broker keeps. No sockets.

    log.error --> UnreportedErrors (a peer's) --once a beat--> Trouble --> PeerErrors (the broker's)

A machine that fails says nearly the same line again and again, with another environment, seed or
step in it. So two texts are one when they differ in numbers only: the first is kept whole, the
others are counted.
"""

import re
import threading
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

from headrace.broker import sanitise

# Of a text; the whole of it stands in the peer's own log.
MOST_TEXT: Final = 2_000
# Kinds that wait at a peer: a beat carries at most 16 * 2,000 characters.
MOST_WAITING: Final = 16
# Kinds that the broker knows, and of these the ones that it shows.
MOST_KEPT: Final = 64
MOST_SHOWN: Final = 20
# Most errors that one report may stand for: no peer logs more within a beat.
_MOST_COUNT: Final = 1_000_000
_MOST_NAME: Final = 64
_NUMBERS = re.compile(r"0x[0-9a-f]+|[0-9]+", re.IGNORECASE)
_OTHERS: Final = "errors of further kinds; the log of this process has them"


def line(text: str) -> str:
    """Returns the text as one printable line, not too long. A line stays as it is."""
    return sanitise.words(" ".join(text[: 4 * MOST_TEXT].split()), MOST_TEXT).rstrip()


def kind(text: str) -> str:
    """Replaces the numbers in a text, so that texts which differ in numbers only are equal; an
    object's address is a number."""
    return _NUMBERS.sub("0", text)


class UnreportedErrors:
    """Collects a peer's errors that the broker has not been told. Any thread may add."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[str, int]] = {}  # by kind: the first text, how often
        self._dropped = 0  # errors whose kind found no place
        # Again by the same thread: a destructor may log while we are in here.
        self._lock = threading.RLock()

    def add(self, text: str, count: int = 1) -> None:
        """Adds an error; also takes back what `take` gave and could not be sent."""
        text = line(text)
        with self._lock:
            first, before = self._waiting.get(kind(text), (text, 0))
            if before or len(self._waiting) < MOST_WAITING:
                self._waiting[kind(text)] = first, before + count
            else:
                self._dropped += count

    def take(self) -> list[tuple[str, int]]:
        """Returns (text, count) of all that waited. What found no place is the last of them."""
        with self._lock:
            taken = list(self._waiting.values())
            if self._dropped:
                taken.append((_OTHERS, self._dropped))
            self._waiting, self._dropped = {}, 0
        return taken

    def __len__(self) -> int:
        return len(self._waiting) + bool(self._dropped)


@dataclass(slots=True)
class _Entry:
    """Describes one kind of error."""

    role: str
    name: str  # of the peer that said it first
    text: str
    count: int
    last: float  # when it was said last


class PeerErrors:
    """Keeps the errors that peers report to the broker. The caller limits how often they may."""

    def __init__(self) -> None:
        self.totals: Counter[str] = Counter()  # by role, since the broker began
        self._entries: dict[tuple[str, str], _Entry] = {}  # the longest silent first

    def add(self, role: str, name: str, text: str, count: int, now: float) -> bool:
        """Adds a report; True = the first of its kind. role: one of those that the broker knows;
        the rest is whatever the peer says."""
        text, count = line(text), min(max(count, 1), _MOST_COUNT)
        self.totals[role] += count
        key = role, kind(text)
        entry = self._entries.pop(key, None)
        first = entry is None
        if entry is None:
            entry = _Entry(role, sanitise.words(name, _MOST_NAME), text, 0, now)
            if len(self._entries) == MOST_KEPT:
                del self._entries[next(iter(self._entries))]
        entry.count += count
        entry.last = now
        self._entries[key] = entry
        return first

    def shown(self, now: float) -> list[dict[str, Any]]:
        """Returns the kinds for the status, the newest first."""
        newest = list(reversed(self._entries.values()))[:MOST_SHOWN]
        return [
            {
                "role": entry.role,
                "name": entry.name,
                "text": entry.text,
                "count": entry.count,
                "ago_s": max(0.0, now - entry.last),
            }
            for entry in newest
        ]
