"""Writes what a process generated, heard, settled and trained, line by line, for the audit.

    P role inc name            whose events stand here
    S inc streams              a sampler joins with the streams 0 .. streams - 1
    G inc stream seq steps     generated          A inc stream lo hi outcome    acknowledged
    X inc stream lo hi         given up at the end
    T inc stream seq version   trained            R inc stream lo hi            rejected
    V version time             a learner begins, trained up to this version; ms since 1970
    B inc stream lo hi outcome settled by the broker
    W unrolls                  the most that a broker's pacing lets be open at once
    E                          the process came to its end in order: nothing is missing here

Each call is one unbuffered write, before any peer is told: it survives kill -9 of the process. A
file that is full is followed by another, and the closed ones are compacted: see journal_files.py.
When sampled unrolls came by stands in a file beside it: see trace.py.
"""

import logging
import os
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from headrace.broker.journal import journal_files
from headrace.broker.journal.trace import Trace
from headrace.broker.protocol.messages import Outcome, Range, Unroll, ranges

log = logging.getLogger(__name__)

_NAMES = {int(outcome): outcome.name.lower() for outcome in Outcome}


class Journal:
    """Writes one process's journal; nothing without a folder. It belongs to one thread."""

    def __init__(self, folder: Path | None, name: str) -> None:
        self._fd = -1
        self._stem = name.removesuffix(".log")
        self._folder = Path() if folder is None else folder
        self._segment = 0  # number of the file that is written
        self._size = 0  # of it
        self._folding: threading.Thread | None = None  # at work on closed files; one at a time
        self._trace = Trace(self._folder, self._stem)
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self._fd = self._open(0)

    def trace(self, every: int) -> None:
        """Notes from now on when one unroll of this many came by; 0 = none."""
        self._trace.every = every if self._fd >= 0 else 0

    def joins(self, role: str, inc: int, name: str) -> None:
        self._write(f"P {role} {inc} {' '.join(name.split())}\n")

    def plays(self, inc: int, streams: int) -> None:
        """Writes which streams there are: one that never ends an unroll stands nowhere else."""
        self._write(f"S {inc} {streams}\n")

    def started(self, inc: int, stream: int, seq: int) -> None:
        self._trace.note("started", inc, stream, seq)

    def generated(self, inc: int, stream: int, seq: int, steps: int) -> None:
        self._trace.note("full", inc, stream, seq)
        if self._fd >= 0:
            self._write(f"G {inc} {stream} {seq} {steps}\n")

    def acknowledged(self, inc: int, settled: Iterable[Range], outcome: int) -> None:
        """Writes what had not been acknowledged before, and only that."""
        if self._fd >= 0:
            word = _NAMES[outcome]
            self._trace.note_ranges("acknowledged", inc, settled, word)
            self._write("".join(f"A {inc} {s} {lo} {hi} {word}\n" for s, lo, hi in settled))

    def given_up(self, inc: int, gone: Iterable[Range]) -> None:
        self._trace.note_ranges("acknowledged", inc, gone, "abandoned")
        self._write("".join(f"X {inc} {s} {lo} {hi}\n" for s, lo, hi in gone))

    def trained(self, keys: Sequence[tuple[int, int, int]], version: int) -> None:
        for inc, stream, seq in keys:
            self._trace.note("trained", inc, stream, seq, version)
        if self._fd >= 0:
            self._write("".join(f"T {inc} {s} {seq} {version}\n" for inc, s, seq in keys))

    def rejected(self, keys: Sequence[tuple[int, int, int]]) -> None:
        self._write("".join(f"R {inc} {s} {seq} {seq + 1}\n" for inc, s, seq in keys))

    def acts_with(self, inc: int, version: int) -> None:
        self._trace.acted(inc, version)

    def arrived(self, unroll: Unroll) -> None:
        self._trace.note("arrived", unroll.inc, unroll.stream, unroll.seq)

    def leased(self, unroll: Unroll) -> None:
        self._trace.note("leased", unroll.inc, unroll.stream, unroll.seq)

    def begins(self, version: int) -> None:
        """Writes that a learner begins: what earlier ones trained above this version is undone."""
        self._write(f"V {version} {int(1000 * time.time())}\n")

    def settled(self, ends: dict[tuple[int, int, Outcome], list[int]]) -> None:
        """Writes what a broker settled since the last call, by (incarnation, stream, outcome)."""
        if self._fd >= 0:
            self._write(
                "".join(
                    f"B {inc} {stream} {lo} {hi} {_NAMES[outcome]}\n"
                    for (inc, stream, outcome), seqs in ends.items()
                    for lo, hi in ranges(sorted(seqs))
                )
            )

    def window(self, unrolls: int) -> None:
        self._write(f"W {unrolls}\n")

    def close(self) -> None:
        """Writes that the process ended in order, and closes the file."""
        self._write("E\n")
        self._close()
        self._trace.close()
        if self._folding is not None:
            self._folding.join(timeout=10.0)

    def _open(self, number: int) -> int:
        path = journal_files.path(self._folder, self._stem, number)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write(self, text: str) -> None:
        if self._fd < 0 or not text:
            return
        line = text.encode()
        try:
            written = os.write(self._fd, line)
            if written < len(line):
                raise OSError(f"{written} of {len(line)} bytes were taken")
        except OSError as error:
            # A full disk must not stop the run; the account of it will be short, and says so here
            # and by an empty file, for which there is room on a full disk.
            log.error("the journal ends here: %s", error)
            self._close()
            journal_files.ends_early(self._folder, self._stem)
            return
        self._size += written
        if self._size >= journal_files.LARGE:
            self._turn()

    def _turn(self) -> None:
        """Goes on in the next file; the closed ones are compacted meanwhile."""
        self._size = 0
        try:
            fd = self._open(self._segment + 1)
        except OSError as error:
            log.warning("the journal goes on in the file that it has: %s", error)
            return
        os.close(self._fd)
        self._fd = fd
        self._segment += 1
        if self._folding is None or not self._folding.is_alive():
            self._folding = threading.Thread(
                target=journal_files.fold,
                args=(self._folder, self._stem, self._segment),
                name="fold",
                daemon=True,
            )
            self._folding.start()
