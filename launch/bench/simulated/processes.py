"""Processes of simulated samplers and learners: real ends and sockets, no environments or networks.

Each process writes its report as JSON, again and again and at the end. SIGTERM ends it: samplers
start nothing more and wait until all is acknowledged, a learner sends BYE.
"""

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from headrace.broker.journal.journal import Journal
from headrace.broker.security.keys import Key
from headrace.launch.config import keyring
from headrace.launch.process import logs, runtime

log = logging.getLogger(__name__)

SPACES = ("simulated", "bytes")  # digest, words


class SamplersSpec(msgspec.Struct, forbid_unknown_fields=True):
    """Describes a process of `count` samplers."""

    broker: str
    report: str  # file
    count: int = 100
    streams: int = 1  # of each
    bytes: int = 1024  # an unroll
    rate: float = 0.0  # unrolls a second of each sampler; 0 = as fast as credit comes
    weights: bool = True  # act only with weights that a learner published, as a real one does
    nodes: int = 0  # that they are behind; 0 = each speaks for itself
    gate: str = ""  # connect when this file appears; "" = at once
    ledger: str = ""  # folder; "" = none
    key: str = ""  # file; "" = the broker works without keys
    drain_s: float = 5.0
    every_s: float = 0.2  # between two reports

    def opened(self) -> bool:
        return not self.gate or Path(self.gate).exists()


class LearnerSpec(msgspec.Struct, forbid_unknown_fields=True):
    """Describes a process that reports each batch as trained."""

    broker: str
    run: str  # file; its [pacing] says how large a batch is
    report: str
    bytes: int = 1024
    delay_s: float = 0.0  # a step
    weights_bytes: int = 4096  # published after every step; 0 = none
    ledger: str = ""
    key: str = ""
    every_s: float = 0.2


Role: TypeAlias = SamplersSpec | LearnerSpec


def arguments(role: Role) -> list[str]:
    """Returns the arguments for a Python process of this role."""
    module = "samplers" if isinstance(role, SamplersSpec) else "learner"
    return ["-m", f"headrace.launch.bench.simulated.{module}", msgspec.json.encode(role).decode()]


def read(report: Path) -> dict[str, Any] | None:
    """Reads a process's latest report; None = there is none yet."""
    try:
        found: dict[str, Any] = msgspec.json.decode(report.read_bytes())
    except FileNotFoundError:
        return None
    return found


# ---- for the processes themselves ----------------------------------------------------------------


def run(role: str, main: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Runs the process; logs one line if the broker refuses it."""
    runtime.die_with_parent()
    runtime.collect_rarely()
    logs.start(role, quiet=True)
    return logs.one_line_errors()(runtime.run_async)(main)


def journal(folder: str, role: str) -> Journal:
    return Journal(Path(folder) if folder else None, f"{role}-{os.getpid()}.log")


def key(file: str, role: str) -> Key | None:
    return keyring.from_file(Path(file) if file else None, role)


def stop_event() -> asyncio.Event:
    """Returns an event that SIGTERM sets."""
    asked = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asked.set)
    return asked


async def sleep(stop: asyncio.Event, seconds: float) -> None:
    """Sleeps this long, or until told to stop."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()


def write(report: str, **figures: Any) -> None:
    """Writes the report atomically, because another process may be reading it."""
    words = msgspec.json.encode({"at": time.monotonic(), "cpu_s": time.process_time(), **figures})
    part = Path(f"{report}.part")
    part.write_bytes(words)
    part.rename(report)
