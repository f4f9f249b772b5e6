"""A warmed parent that forks roles: torch is imported once, so what was killed is back at once.

Run as a script in a test's folder. Orders come through a pipe, one JSON line each; what became of
the children goes to a file, one line each:

    born NUMBER PID        ended NUMBER STATUS        (negative: killed by that signal)

A child is a whole role of its own, as `headrace` would run it; only the import is shared.
"""

import gc
import json
import logging
import os
import select
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

ORDERS, EVENTS = "nest.orders", "nest.events"


def main(folder: Path) -> NoReturn:
    """Until it is killed."""
    # Here, not above: the tests import this file for its names.
    import gymnasium  # noqa: F401
    import torch._dynamo  # noqa: F401  # every optimiser asks for it

    import launch.actor
    import launch.broker
    import launch.learner  # noqa: F401

    gc.freeze()
    # Open for writing too: the pipe never ends.
    orders = os.open(folder / ORDERS, os.O_RDWR)
    events = os.open(folder / EVENTS, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    numbers: dict[int, int] = {}  # child's pid -> number of its order
    waiting = b""
    while True:
        if select.select([orders], [], [], 0.01)[0]:
            waiting += os.read(orders, 65536)
        *whole, waiting = waiting.split(b"\n")
        for line in whole:
            order = json.loads(line)
            pid = os.fork()
            if pid == 0:
                os.close(orders)
                os.close(events)
                become(order)
            numbers[pid] = order["number"]
            os.write(events, f"born {order['number']} {pid}\n".encode())
        while numbers:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended = os.waitstatus_to_exitcode(status)
            os.write(events, f"ended {numbers.pop(pid)} {ended}\n".encode())


def become(order: dict[str, Any]) -> NoReturn:
    """The child's whole life."""
    status = 1
    try:
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.update(order["env"])
        signal.signal(signal.SIGINT, signal.default_int_handler)
        from launch import cli

        status = cli.main(order["words"])
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:  # nothing may unwind into the parent's code
        logging.getLogger(__name__).exception("a role failed")
    finally:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
