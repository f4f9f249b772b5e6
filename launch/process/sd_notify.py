"""Tells systemd how a role is: sd_notify(3) by hand. Without NOTIFY_SOCKET nothing is sent; /livez
tells a kubelet the same.

A message is one datagram of NAME=VALUE lines to the socket that NOTIFY_SOCKET names: a path, or
@name in the abstract namespace. Of several ranks on a machine only the first speaks: they are one
unit.
"""

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

# Often enough for a person who reads the status line.
_NOTIFY_EVERY_S = 5.0
# The start timeout that a role asks for each time, while it waits for its broker: a minute.
_PATIENCE = "EXTEND_TIMEOUT_USEC=60000000"


def send(*lines: str) -> None:
    """Sends lines to the service manager; one that no longer listens is not our trouble."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address[:1] not in ("/", "@") or os.environ.get("LOCAL_RANK", "0") != "0":
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as way,
    ):
        way.setblocking(False)  # a full socket holds nobody up; the next message says it again
        way.sendto("\n".join(lines).encode(), address)


def stopping() -> None:
    """Tells the service manager that we end in order; what is open is settled first."""
    send("STOPPING=1", _status("stopping: what is open is settled first"))


def waiting(text: str) -> None:
    """Tells the service manager what a role that has not begun waits for, and that it goes on
    waiting."""
    send(_status(f"waits {text}"), _PATIENCE)


def _status(text: str) -> str:
    """Returns the line for `systemctl status`."""
    return f"STATUS={' '.join(text.split())}"


class WatchdogReading(NamedTuple):
    """Holds a role's counters as its watchdog reads them."""

    ready: bool  # a broker welcomed it, and it can do its work
    moved: Hashable  # changes when it gets on with its work
    turns: tuple[Hashable, ...]  # each changes while one of its loops turns
    idle: bool  # there is no work for it: it is enough that its loops turn
    text: str  # the status line
    steps: int | None = None  # so far; their rate is shown after the text


def together(reads: Sequence[Callable[[], WatchdogReading]]) -> Callable[[], WatchdogReading]:
    """Returns what reads all that a process does as one: it is enough that one of them waits for
    what others owe it. They may become more and fewer."""

    def read() -> WatchdogReading:
        readings = [one() for one in list(reads)]
        return WatchdogReading(
            ready=bool(readings) and all(reading.ready for reading in readings),
            moved=tuple(reading.moved for reading in readings),
            turns=tuple(turn for reading in readings for turn in reading.turns),
            idle=any(reading.idle for reading in readings),
            text="; ".join(reading.text for reading in readings),
            steps=sum(reading.steps or 0 for reading in readings),
        )

    return read


class Watchdog:
    """Tells, by a role's counters, whether it is ready and gets on: a role that hangs moves
    none."""

    def __init__(self, read: Callable[[], WatchdogReading]) -> None:
        self._read = read
        self._seen: WatchdogReading | None = None  # the last one
        self._at = 0.0  # when that was
        self._got_on_at = time.monotonic()
        self._ready = False  # READY=1 was said
        self._end = threading.Event()  # of the thread
        self._thread = threading.Thread(target=self._watch, name="notify", daemon=True)
        dog_s = int(os.environ.get("WATCHDOG_USEC") or 0) / 1e6
        self._every_s = min(_NOTIFY_EVERY_S, dog_s / 4 or _NOTIFY_EVERY_S)

    def notify(self) -> None:
        """Reads the counters once, and sends what follows. READY=1: units ordered after us may
        begin. WATCHDOG=1: without it for WatchdogSec, we are killed and started again."""
        now, reading = time.monotonic(), self._read()
        lines = [_status(self._text(reading, now))]
        if reading.ready and not self._ready:
            self._ready = True
            lines.append("READY=1")
        elif self._got_on(reading):
            self._got_on_at = now
            lines.append("WATCHDOG=1" if self._ready else _PATIENCE)
        send(*lines)
        self._seen, self._at = reading, now

    def stuck(self) -> str:
        """Returns for how long the role has not got on, "" = it does. A step may take long: how
        long is too long is for whoever asks to say."""
        silent_s = time.monotonic() - self._got_on_at
        return "" if silent_s <= 3 * self._every_s else f"has not got on for {silent_s:.0f} s"

    def _got_on(self, reading: WatchdogReading) -> bool:
        before = self._seen
        if before is None:
            return False
        if reading.moved != before.moved:
            return True
        pairs = zip(reading.turns, before.turns, strict=True)
        return reading.idle and all(now != then for now, then in pairs)

    def _text(self, reading: WatchdogReading, now: float) -> str:
        before = self._seen
        if reading.steps is None or before is None or before.steps is None:
            return reading.text
        return f"{reading.text}, {(reading.steps - before.steps) / (now - self._at):,.0f} steps/s"

    def tick(self) -> None:
        """Notifies when it is time; for a role with a loop of its own, at every turn."""
        if time.monotonic() - self._at >= self._every_s:
            self.notify()

    async def loop(self) -> None:
        """Notifies on a role's event loop: one that hangs sends nothing."""
        while True:
            self.notify()
            await asyncio.sleep(self._every_s)

    def start(self) -> None:
        """Notifies in a thread, beside a main thread that works; once is enough."""
        if self._thread.ident is None:
            self._got_on_at = time.monotonic()  # what came before was not its work
            self._thread.start()

    def stop(self) -> None:
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        while True:
            self.notify()
            if self._end.wait(self._every_s):
                return
