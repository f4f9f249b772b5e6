"""A sum that must be 0, looked at from another thread than the one that counts."""

import time
from collections.abc import Callable

# A move in the ledger takes microseconds; what is wrong after all these looks is wrong.
_LOOKS = 20
_PAUSE_S = 0.002


def steady(look: Callable[[], int]) -> int:
    """A scrape may come in the middle of a move, between two of its counters. It looks again."""
    for _ in range(_LOOKS):
        found = look()
        if not found:
            return 0
        time.sleep(_PAUSE_S)
    return found
