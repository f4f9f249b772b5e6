"""Ports to bind later.

They lie below those that the kernel hands out by itself: a connection that anyone makes in the
meantime cannot take one of them. Each worker of the test run has a range of its own.
"""

import os
import random
import socket

_FIRST, _EACH = 20000, 1500


def free(in_a_row: int = 1) -> int:
    """The first of so many ports in a row that nobody listens at."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 8
    for _ in range(1000):
        first = _FIRST + worker * _EACH + random.randrange(_EACH - in_a_row)
        if all(_is_free(port) for port in range(first, first + in_a_row)):
            return first
    raise AssertionError("no free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
