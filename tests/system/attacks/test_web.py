"""A real broker's HTTP port while a thousand connections are held open and say nothing, or a byte
now and then."""

import contextlib
import http.client
import select
import socket
import threading
import time

from headrace.launch.process import descriptors
from tests.system.commands.test_metrics import get, port_of
from tests.system.conftest import Place
from tests.system.harness.figures import pick, say

_MANY = 1000


def test_a_thousand_idle_and_trickling_connections_keep_nobody_out(place: Place) -> None:
    descriptors.ensure("this test", _MANY + 200)
    port = port_of(place.broker("--metrics-port", "0"))
    assert get(port, "/healthz") == (200, "ok\n")
    ended = threading.Event()
    opened = 0

    def occupy() -> None:
        """Keeps a thousand open: every other one trickles; those that are closed come back."""
        nonlocal opened
        lines: list[socket.socket] = []
        while not ended.is_set():
            while len(lines) < _MANY and not ended.is_set():
                with contextlib.suppress(OSError):
                    lines.append(socket.create_connection(("127.0.0.1", port), timeout=20))
                    opened += 1
            for trickling in lines[::2]:
                with contextlib.suppress(OSError):
                    trickling.send(b"G")
            poller = select.poll()  # some of their descriptors are beyond what select() takes
            for line in lines:
                poller.register(line, select.POLLIN)
            closed = {fd for fd, _ in poller.poll(10)}
            for line in lines:
                if line.fileno() in closed:
                    line.close()
            lines = [line for line in lines if line.fileno() >= 0]
        for line in lines:
            line.close()

    closed = 0

    def asked(path: str) -> tuple[int, str]:
        """Asks again when it was the oldest of too many that had not said anything yet: between
        connecting and asking a busy machine may take 64 others in."""
        nonlocal closed
        for _ in range(10):
            with contextlib.suppress(http.client.RemoteDisconnected, ConnectionResetError):
                return get(port, path)
            closed += 1
        raise AssertionError(f"{path}: closed ten times in a row")

    thread = threading.Thread(target=occupy)
    thread.start()
    times = []
    try:
        while opened < _MANY:
            time.sleep(0.01)
        for _ in range(pick(50, 2000)):
            began = time.monotonic()
            assert asked("/healthz") == (200, "ok\n")
            assert asked("/metrics")[0] == 200
            assert asked("/status.json")[0] == 200
            times.append(time.monotonic() - began)
    finally:
        ended.set()
        thread.join()
    assert closed <= len(times) / 10
    say(
        "a thousand idle connections",
        opened=opened,
        closed=closed,
        answers=3 * len(times),
        slowest_s=max(times),
    )
