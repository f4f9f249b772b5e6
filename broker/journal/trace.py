"""Writes when sampled unrolls came by, in a file of its own beside the process's journal.

    started inc stream seq time                 its sampler used credit for it
    full inc stream seq time                    its sampler handed it to the connection
    arrived inc stream seq time                 it came to the broker
    leased inc stream seq time                  the broker gave it to a learner rank
    trained inc stream seq time version         a step used it, and made this version
    acknowledged inc stream seq time outcome    its sampler heard how it ended, or gave it up
    acts inc version time                       its sampler acts with these weights from now on

Times are microseconds since 1970, by the clock of the process's machine. Each process finds by
itself which unrolls are sampled, so nothing of it is in any message.
"""

import logging
import os
import time
from collections.abc import Iterable
from pathlib import Path

from headrace.broker.protocol.messages import Range

log = logging.getLogger(__name__)

# Bytes: a file is set aside and the one set aside before is removed, so that a run of weeks keeps
# its latest traces and fills no disk.
LARGE = 8 * 2**20
# Streams are sampled at different numbers: those of one sampler often go in step.
_APART = 7919


class Trace:
    """Writes one process's traces, once `every` is set. A line goes out in one write."""

    def __init__(self, folder: Path, stem: str) -> None:
        self.every = 0  # one unroll of each stream in this many; 0 = none
        self._path = folder / f"{stem}.trace"
        self._before = folder / f"{stem}.before.trace"
        self._fd = -1  # opened for the first line
        self._size = 0

    def note(self, station: str, inc: int, stream: int, seq: int, more: object = "") -> None:
        """Writes that an unroll is at a station, if it is sampled."""
        if self.every and not (inc + _APART * stream + seq) % self.every:
            self._write(f"{station} {inc} {stream} {seq} {_now()} {more}".rstrip())

    def note_ranges(self, station: str, inc: int, unrolls: Iterable[Range], more: str) -> None:
        for stream, lo, hi in unrolls if self.every else ():
            for seq in range(lo, hi):
                self.note(station, inc, stream, seq, more)

    def acted(self, inc: int, version: int) -> None:
        if self.every:
            self._write(f"acts {inc} {version} {_now()}")

    def close(self) -> None:
        self.every = 0
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write(self, line: str) -> None:
        try:
            if self._size >= LARGE:
                self._path.replace(self._before)
                os.close(self._fd)
                self._fd, self._size = -1, 0
            if self._fd < 0:
                self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            self._size += os.write(self._fd, f"{line}\n".encode())
        except OSError as error:  # a full disk must not stop the run
            log.warning("no more traces: %s", error)
            self.close()


def _now() -> int:
    return time.time_ns() // 1000
