"""Options of the Linux kernel for this thread or process; on other systems these do nothing."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG, _PR_SET_TIMERSLACK = 1, 29


def minimise_timer_slack() -> None:
    """Lets this thread's sleeps end when they are due, not 50 microseconds later: a simulator that
    waits for its tick would lose that much in every step."""
    _prctl(_PR_SET_TIMERSLACK, 1)


def die_with_parent(parent: int) -> None:
    """Has the kernel kill this process when `parent` dies, however it died."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before we could ask
        os._exit(1)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(
            ctypes.c_int(option),
            ctypes.c_ulong(value),
            ctypes.c_ulong(0),
            ctypes.c_ulong(0),
            ctypes.c_ulong(0),
        )
