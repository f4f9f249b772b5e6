"""What one process generated, heard and trained, line by line, so that a whole run can be audited.

    G inc stream seq steps     generated          A inc stream lo hi outcome    acknowledged
    T inc stream seq version   trained            X inc stream lo hi            given up at the end

Each line is one unbuffered write: it survives kill -9 of the process.
"""

import logging
import os
from pathlib import Path

from broker.wire import Outcome

log = logging.getLogger(__name__)


class Journal:
    """One file per process; without a folder it writes nothing."""

    def __init__(self, folder: Path | None, name: str) -> None:
        self._fd = -1
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def generated(self, inc: int, stream: int, seq: int, steps: int) -> None:
        if self._fd >= 0:
            self._write(f"G {inc} {stream} {seq} {steps}\n")

    def acknowledged(self, inc: int, stream: int, lo: int, hi: int, outcome: int) -> None:
        if self._fd >= 0:
            self._write(f"A {inc} {stream} {lo} {hi} {Outcome(outcome).name.lower()}\n")

    def trained(self, keys: list[tuple[int, int, int]], version: int) -> None:
        if self._fd >= 0:
            self._write("".join(f"T {inc} {s} {seq} {version}\n" for inc, s, seq in keys))

    def given_up(self, inc: int, stream: int, lo: int, hi: int) -> None:
        if self._fd >= 0:
            self._write(f"X {inc} {stream} {lo} {hi}\n")

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write(self, text: str) -> None:
        try:
            os.write(self._fd, text.encode())
        except OSError as error:
            # A full disk must not stop the run; the account of it will be short, and says so here.
            log.error("the journal ends here: %s", error)
            self.close()
