"""What a fault, load or attack test did and found, one line each, shown at the end of the session.

`make soak` sets HEADRACE_SOAK=1: the same tests then run for as long as the promise asks.
"""

import os
from typing import Any, TypeVar

T = TypeVar("T")

LONG = os.environ.get("HEADRACE_SOAK") == "1"

lines: list[str] = []  # of this session, in order


def pick(short: T, long: T) -> T:
    """The size in `make test`, and in `make soak`."""
    return long if LONG else short


def say(name: str, **figures: Any) -> None:
    """One line: what was done to the system, and what became of it."""
    words = " ".join(f"{key}={_short(value)}" for key, value in figures.items())
    lines.append(f"{name}: {words}")


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
