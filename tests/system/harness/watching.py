"""Looks at running roles from outside: is anything trained, what do they hold."""

import contextlib
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from tests.system.conftest import Place, Process, until


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


def sockets(pid: int) -> int:
    """Its open sockets, without the eventfds and epolls that ZeroMQ makes once for itself."""
    count = 0
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            count += str(link.readlink()).startswith("socket:")
    return count


def trained_versions(journal: Path) -> list[int]:
    """The versions that trained an unroll, in the order in which one learner wrote them down."""
    lines = [line.split() for line in journal.read_text().splitlines()]
    return [int(words[4]) for words in lines if words[0] == "T"]


def stop_ahead_of_its_checkpoint(place: Place, learner: Process) -> None:
    """Stops it (SIGSTOP) where a kill undoes something: it trained since it last saved."""

    def ahead() -> bool:
        learner.signal(signal.SIGSTOP)
        newest = int(place.checkpoints()[-1].name)
        journal = max(place.ledger.glob("learner-*.log"), key=lambda path: path.stat().st_mtime)
        if max(trained_versions(journal), default=0) > newest:
            return True
        learner.signal(signal.SIGCONT)
        return False

    until(ahead, "something that no checkpoint has")


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
