"""Joins the traces of all processes of a run: when each sampled unroll was where, and how long the
ways between took. See trace.py for the lines.

Each station's first time counts; an unroll that was leased or trained again says how often. Times
of two machines are compared as they stand: where their clocks differ, a way may seem negative.
"""

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

# In their order; `acted`: its sampler first acts with the weights that it made, or newer ones.
STATIONS: Final = ("started", "full", "arrived", "leased", "trained", "acknowledged", "acted")
# Names, and from where to where. Acknowledgement and weights leave the learner side by side.
WAYS: Final = (
    ("played", "started", "full"),
    ("sent", "full", "arrived"),
    ("queued", "arrived", "leased"),
    ("learnt", "leased", "trained"),
    ("told", "trained", "acknowledged"),
    ("acted on", "trained", "acted"),
    ("whole", "started", "acted"),
)
_MOST: Final = 1 << 63  # of any number in a line
_MOST_TIME: Final = 1 << 52  # microseconds: in the year 2112
_MOST_DAMAGE: Final = 3  # damaged lines of one file that are reported one by one


@dataclass(slots=True)
class TracedUnroll:
    """Holds what is known of one unroll: what a process that was killed, or that writes no ledger,
    would have said is missing."""

    inc: int
    stream: int
    seq: int
    times: dict[str, int] = field(default_factory=dict)  # by station, microseconds since 1970
    seen: Counter[str] = field(default_factory=Counter)  # how often at each station
    version: int = -1  # that it made; -1 = none that is known
    outcome: str = ""  # as its sampler heard it

    def took(self, since: str, to: str) -> float | None:
        """Returns milliseconds; None = one of the two is not known."""
        if since not in self.times or to not in self.times:
            return None
        return (self.times[to] - self.times[since]) / 1000

    def end(self) -> str:
        """Returns its outcome, or the last that was heard of it."""
        last = [station for station in STATIONS if station in self.times][-1]
        known = "acted" in self.times or self.outcome not in ("", "trained")
        words = [self.outcome or "trained" if known else f"nothing after {last}"]
        words += [f"{at} {n} times" for at, n in self.seen.items() if n > 1]
        return ", ".join(words)


@dataclass(frozen=True, slots=True)
class Way:
    """Holds how long a way took, in milliseconds, over the unrolls of which both ends are known."""

    name: str
    since: str
    to: str
    unrolls: int
    p50: float
    p90: float
    p99: float
    longest: float
    negative: int  # how many took less than no time: two clocks differ
    shortest: float


@dataclass(slots=True)
class Traces:
    """Holds the sampled unrolls of a run, in the order of their times."""

    unrolls: list[TracedUnroll]
    damage: list[str] = field(default_factory=list)  # one line each, with file and line

    def ways(self) -> list[Way]:
        return [_way(name, since, to, self.unrolls) for name, since, to in WAYS]


def read(folder: Path, *, newest: int = 0) -> Traces:
    """Reads every file of traces in a folder; `newest`: about so many bytes of all together, the
    last of each file. Lines that are torn at either end are left out."""
    join = _Join()
    files = sorted(folder.glob("*.trace"))
    for path in files:
        join.add(path.name, _lines(path, newest // len(files)))
    return join.traces()


def _lines(path: Path, newest: int) -> Iterator[tuple[int, str]]:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        first = max(0, size - newest) if newest else 0
        file.seek(first)
        if first:
            file.readline()
        for number, line in enumerate(file, 1):
            if line.endswith(b"\n"):
                yield number, line[:-1].decode(errors="replace")


class _Join:
    def __init__(self) -> None:
        self._unrolls: dict[tuple[int, int, int], TracedUnroll] = {}
        # Versions that each sampler acted with, and when: both grow.
        self._acts: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self._damage: list[str] = []
        self._readers: dict[str, Callable[[str, Sequence[str]], None]] = {
            **dict.fromkeys(STATIONS[:-1], self._station),
            "acts": self._acted,
        }

    def add(self, name: str, lines: Iterable[tuple[int, str]]) -> None:
        damaged = 0
        for number, line in lines:
            station, *words = line.split(" ")
            try:
                self._readers[station](station, words)
            except (KeyError, ValueError):
                damaged += 1
                if damaged <= _MOST_DAMAGE:
                    self._damage.append(f"{name}, line {number} is no line: {line[:60]!r}")
        if damaged > _MOST_DAMAGE:
            self._damage.append(f"{name}: {damaged - _MOST_DAMAGE} more such lines")

    def traces(self) -> Traces:
        for acts in self._acts.values():
            acts.sort()
        for unroll in self._unrolls.values():
            acts = self._acts.get(unroll.inc, [])
            at = bisect_left(acts, (unroll.version, 0))
            if unroll.version >= 0 and at < len(acts):
                unroll.times["acted"] = acts[at][1]
        found = sorted(self._unrolls.values(), key=lambda unroll: min(unroll.times.values()))
        return Traces(found, self._damage)

    def _station(self, station: str, words: Sequence[str]) -> None:
        inc, stream, seq, at = map(_number, words[:4])
        more = words[4:]
        if at >= _MOST_TIME or len(more) != (station in ("trained", "acknowledged")):
            raise ValueError
        version = _number(more[0]) if station == "trained" else -1
        unroll = self._unrolls.setdefault((inc, stream, seq), TracedUnroll(inc, stream, seq))
        unroll.times.setdefault(station, at)
        unroll.seen[station] += 1
        if station == "trained" and unroll.version < 0:
            unroll.version = version
        elif station == "acknowledged":
            unroll.outcome = more[0]

    def _acted(self, _: str, words: Sequence[str]) -> None:
        inc, version, at = map(_number, words)
        if at >= _MOST_TIME:
            raise ValueError
        self._acts[inc].append((version, at))


def _number(word: str) -> int:
    number = int(word)
    if not 0 <= number < _MOST:
        raise ValueError
    return number


def _way(name: str, since: str, to: str, unrolls: Iterable[TracedUnroll]) -> Way:
    took = sorted(ms for unroll in unrolls if (ms := unroll.took(since, to)) is not None)
    if not took:
        return Way(name, since, to, 0, *(4 * (math.nan,)), 0, math.nan)
    p50, p90, p99 = (took[math.ceil(share * len(took)) - 1] for share in (0.5, 0.9, 0.99))
    negative = bisect_left(took, 0.0)
    return Way(name, since, to, len(took), p50, p90, p99, took[-1], negative, took[0])
