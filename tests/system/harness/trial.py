"""One run under faults, from its first trained unroll to its account.

Lost, strictly: what was generated and stays open while newer unrolls come and go. The account of a
run that was stopped comes out even whatever happened, because who leaves gives up what is open.
"""

import math
import os
import time
from pathlib import Path
from typing import Any

from tests.system.conftest import LONG_S, Place, Process, until
from tests.system.harness.figures import say

_MOST_MB = 32.0  # that a process may grow by under faults

Key = tuple[int, int, int]  # incarnation, stream, seq


class Trial:
    """Watches a broker, a learner and samplers that train already."""

    def __init__(self, place: Place, broker: Process, learner: Process, *samplers: Process) -> None:
        self.faults = 0
        self.lost = 0
        self.flow_s = 0.0  # the longest until the run trained again after a fault
        self.grew_mb = 0.0  # the most by which any process grew
        self._place = place
        self._roles = (*samplers, learner, broker)  # in the order in which they stop
        self._away: set[int] = set()  # who was killed, or has yet to grow to its size
        until(lambda: place.trained() >= 20, "it trains", timeout_s=4 * LONG_S)
        self._began = time.monotonic()
        self._sizes: dict[int, float] = {}  # MB of each process when it was seen first
        self.look()

    def look(self) -> None:
        """At the memory; while a fault lasts, and after it."""
        page = os.sysconf("SC_PAGE_SIZE") / 2**20
        for role in self._roles:
            if role.pid not in self._away:
                now = int(Path(f"/proc/{role.pid}/statm").read_text().split()[1]) * page
                self.grew_mb = max(self.grew_mb, now - self._sizes.setdefault(role.pid, now))

    def for_seconds(self, seconds: float, *, enough: float = math.inf) -> int:
        """Lets the time pass; returns the number of unrolls trained in it. It is over sooner once
        `enough` were."""
        before, deadline = self._place.trained(), time.monotonic() + seconds
        while time.monotonic() < deadline and self._place.trained() < before + enough:
            time.sleep(min(0.5, max(0.0, deadline - time.monotonic())))
            self.look()
        return self._place.trained() - before

    def healed(self, *, timeout_s: float = 2 * LONG_S) -> float:
        """A fault is over: seconds until unrolls were trained that cannot have been under way."""
        began, goal = time.monotonic(), self._place.trained() + 20
        while self._place.trained() < goal:
            ended = [role.text() for role in self._roles if role.popen.poll() is not None]
            assert not ended, ended[0]
            assert time.monotonic() < began + timeout_s, f"no flow after {timeout_s:.0f} s"
            time.sleep(0.02)
        flow_s = time.monotonic() - began
        self.faults += 1
        self.flow_s = max(self.flow_s, flow_s)
        self._away.clear()
        self.look()
        self.lost += len(self._stuck())
        return flow_s

    def without(self, role: Process) -> None:
        """It was killed, and is not looked at until another takes its place."""
        self._away.add(role.pid)

    def replaces(self, old: Process, new: Process) -> None:
        """One ended, and the other takes its place."""
        self._roles = tuple(new if role is old else role for role in self._roles)
        self._away.add(new.pid)

    def end(self, name: str, **figures: Any) -> None:
        """Everybody stops; the figures, and what must be true of every trial."""
        before = self._stuck()
        statuses = [process.term() for process in self._roles]
        account = self._place.account()
        outcomes = {how: n for how, n in account.outcomes.items() if n}
        say(
            name,
            faults=self.faults,
            generated=account.generated,
            **outcomes,
            in_flight=account.in_flight,
            lost=self.lost,
            twice=account.twice,
            untrue=account.untrue,
            flow_back_s=self.flow_s,
            grew_mb=self.grew_mb,
            **figures,
            seconds=time.monotonic() - self._began,
        )
        assert statuses == [0] * len(statuses)
        assert self.lost == len(before) == 0
        assert (account.unaccounted(), account.in_flight, account.untrue) == (0, 0, 0)
        assert self.grew_mb < _MOST_MB

    def _stuck(self, *, within_s: float = LONG_S) -> set[Key]:
        """Of what is open now, what stays so although the run goes on."""
        stuck = _open(self._place.ledger)
        deadline = time.monotonic() + within_s
        while stuck and time.monotonic() < deadline:
            time.sleep(0.05)
            stuck &= _open(self._place.ledger)
        return stuck


def _open(folder: Path) -> set[Key]:
    """Generated, and its own sampler has not heard of its end."""
    generated: set[Key] = set()
    ended: set[Key] = set()
    for path in folder.glob("actor-*.log"):
        text = path.read_text()
        for line in text[: text.rfind("\n") + 1].splitlines():
            kind, *rest = line.split()
            if kind == "G":
                inc, stream, seq = map(int, rest[:3])
                generated.add((inc, stream, seq))
            elif kind in ("A", "X"):
                inc, stream, lo, hi = map(int, rest[:4])
                ended.update((inc, stream, seq) for seq in range(lo, hi))
    return generated - ended
