"""What a node's processes report to it, by datagram: figures once a second, and their log lines.

They come from our own children, through a socket that only this user can reach; even so every one
is bounded and checked. A figure that does not get through is not missed: the next one is a total.
A line that does not goes to standard error instead.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta, Struct

MOST_BYTES: Final = 1 << 14
WANTS_ACT: Final = "wants_act"  # among a sampler's figures: it would ask an act process
_MOST_TEXT: Final = 4000
_EVERY_S: Final = 1.0
# The node reads within a tenth of a second; one that does not is gone, or stopped.
_PATIENCE_S: Final = 0.2

Number: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 53)]


class ProcessFigures(
    Struct, frozen=True, array_like=True, tag="Figures", forbid_unknown_fields=True
):
    """Reports one process's figures, since it began."""

    pid: Number
    welcome: bool  # a broker knows it
    over: bool  # it was told that the run is over
    drain_s: Annotated[float, Meta(ge=0, le=3600)]  # it may need this long to end
    stats: dict[Annotated[str, Meta(max_length=64)], float]


class LogLine(Struct, frozen=True, array_like=True, tag="Line", forbid_unknown_fields=True):
    """Reports one line of a process's log."""

    pid: Number
    level: Annotated[int, Meta(ge=0, le=100)]
    text: Annotated[str, Meta(max_length=_MOST_TEXT)]


_DECODER: Final = msgspec.msgpack.Decoder(ProcessFigures | LogLine)


class ReportSender:
    """Sends a process's figures and log lines to its node."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)

    def send(self, said: ProcessFigures | LogLine, *, patience_s: float = 0.0) -> bool:
        """Sends one message; False = it did not get through."""
        self._socket.settimeout(patience_s)
        try:
            self._socket.sendto(msgspec.msgpack.encode(said), self._path)
        except OSError:
            return False
        return True

    def close(self) -> None:
        self._socket.close()

    async def keep_sending(self, figures: Callable[[], ProcessFigures]) -> None:
        """Sends the figures once a second, until it is cancelled."""
        while True:
            self.send(figures())
            await asyncio.sleep(_EVERY_S)


class _Handler(logging.Handler):
    """Sends log lines to the node; those that do not get through go to the handlers that were there
    before."""

    def __init__(self, sender: ReportSender, instead: list[logging.Handler]) -> None:
        super().__init__()
        self._sender = sender
        self._instead = instead
        self.setFormatter(logging.Formatter("%(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)[-_MOST_TEXT:]  # of a traceback the end says why
        line = LogLine(os.getpid(), record.levelno, text)
        if not self._sender.send(line, patience_s=_PATIENCE_S):
            for handler in self._instead:
                handler.handle(record)


def log_to_node(sender: ReportSender) -> None:
    """Sends this process's log to the node, which logs once what eight samplers say alike."""
    root = logging.getLogger()
    root.handlers = [_Handler(sender, root.handlers)]


class ReportReceiver:
    """Receives the reports at the node's end."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self.socket.setblocking(False)
        self.socket.bind(str(path))
        self.nonsense = 0  # datagrams that are not reports

    def receive(self) -> list[ProcessFigures | LogLine]:
        """Returns the messages that came, at most 1000 at a time."""
        found: list[ProcessFigures | LogLine] = []
        for _ in range(1000):
            try:
                packet = self.socket.recv(MOST_BYTES + 1)
            except OSError:
                break
            try:
                found.append(_DECODER.decode(packet))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                self.nonsense += 1
        return found

    def close(self) -> None:
        self.socket.close()
