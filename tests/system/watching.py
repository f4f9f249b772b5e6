"""Looks at running roles from outside: is anything trained, what do they hold."""

import time
from dataclasses import dataclass
from pathlib import Path

from tests.system.conftest import Place


class Progress:
    """How long nothing was trained, at most. Looks at the journals' sizes."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._bytes = 0
        self._at = time.monotonic()
        self.longest_s = 0.0

    def look(self) -> None:
        size = sum(p.stat().st_size for p in self._place.ledger.glob("learner-*.log"))
        now = time.monotonic()
        self.longest_s = max(self.longest_s, now - self._at)
        if size != self._bytes:  # it shrinks when it is folded
            self._bytes, self._at = size, now

    def wait(self, until_s: float) -> None:
        """Looks until that moment."""
        while time.monotonic() < until_s:
            self.look()
            time.sleep(0.02)


@dataclass(frozen=True, slots=True)
class Held:
    """What one process holds, as the kernel says."""

    rss_mb: float
    descriptors: int
    threads: int


def held(pid: int) -> Held:
    proc = Path(f"/proc/{pid}")
    lines = (proc / "status").read_text().splitlines()
    said = dict(line.split(":", 1) for line in lines)
    rss = int(said["VmRSS"].split()[0]) / 1024
    return Held(rss, len(list((proc / "fd").iterdir())), int(said["Threads"]))


def slope(points: list[tuple[float, float]]) -> float:
    """Of the straight line that lies best among (x, y)."""
    count = len(points)
    mean_x = sum(x for x, _ in points) / count
    mean_y = sum(y for _, y in points) / count
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread


def trained_per_s(place: Place, seconds: float) -> float:
    """Unrolls written down as trained, from now on."""
    first, began = place.trained(), time.monotonic()
    time.sleep(seconds)
    return (place.trained() - first) / (time.monotonic() - began)
