"""When a node's process that ended is started again. Pure.

A node goes on for ever: a machine that is broken today may be repaired tonight. So there is no last
attempt, but each one that fails soon doubles the next pause (back-off).
"""

import math
import random
from dataclasses import dataclass
from typing import Final

_PAUSE_S: Final = (0.5, 30.0)
# A process that ran this long resets its back-off.
_LIVED_S: Final = 60.0
# A relay reports every second. One that does not for this long hangs, and all samplers with it.
_HANGS_S: Final = 20.0
# An order without an answer for this long was lost with its forker.
_ORDER_S: Final = 10.0


@dataclass(slots=True)
class ProcessSlot:
    """Holds the state of one process, a sampler or the relay (index -1), and its restart
    back-off."""

    index: int
    core: int = -1  # it runs there only; -1 = anywhere
    pid: int = 0  # 0 = none runs
    wanted: bool = True  # False = the node was made smaller; it drains, and is not started again
    leave_by: float = math.inf  # it was asked to end, and is killed then
    done: bool = False  # the run is over for it
    due_at: float = 0.0  # when to start it
    deaths: int = 0  # too soon, in a row
    restarts: int = 0
    started_at: float = 0.0
    heard_at: float = 0.0  # when it reported last
    ordered_at: float | None = None  # when it was ordered; None = it is not

    def should_start(self, now: float) -> bool:
        """Says whether to order its start now."""
        if self.ordered_at is not None and now - self.ordered_at > _ORDER_S:
            self.ordered_at = None
        free = self.wanted and not self.pid and not self.done
        return free and self.ordered_at is None and now >= self.due_at

    def started(self, pid: int, now: float) -> None:
        """Records the pid of the started process; 0 = it could not be started."""
        self.ordered_at = None
        if pid:
            self.pid, self.started_at, self.heard_at = pid, now, now
        else:
            self.ended(now)

    def hangs(self, now: float) -> bool:
        """Says whether it is a relay that reports nothing any more; once, as it is killed then."""
        silent = self.index < 0 < self.pid and now - self.heard_at > _HANGS_S
        if silent:
            self.heard_at = now
        return silent

    def ended(self, now: float) -> float:
        """Sets when it is due again; returns the seconds until then."""
        self.leave_by = math.inf
        lived = now - self.started_at if self.pid else 0.0
        self.deaths = 1 if lived > _LIVED_S else self.deaths + 1
        self.pid = 0
        self.restarts += 1
        first, most = _PAUSE_S
        # Machines that lost the same broker should not come back to it in step.
        pause = min(most, first * 2.0 ** min(self.deaths - 1, 16)) * random.uniform(0.5, 1.0)
        self.due_at = now + pause
        return pause
