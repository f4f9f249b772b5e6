"""Runs a command in a terminal of its own."""

import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

from tests.system.conftest import PATIENCE_S

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]")


class Terminal:
    """A command that believes somebody sits in front of it."""

    def __init__(
        self, *arguments: str, rows: int = 50, columns: int = 110, folder: Path | None = None
    ) -> None:
        self._ours, theirs = pty.openpty()
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "headrace.launch.cli", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            cwd=folder,
            env={
                **os.environ,
                "TERM": "xterm-256color",
                "COLUMNS": str(columns),
                "LINES": str(rows),
            },
        )
        os.close(theirs)
        self.said = ""

    def says(self, pattern: str, *, timeout_s: float = PATIENCE_S) -> re.Match[str]:
        """From now on."""
        deadline = time.monotonic() + timeout_s
        while (found := re.search(pattern, ESCAPES.sub("", self.said))) is None:
            assert time.monotonic() < deadline, f"{pattern!r} in {self.said[-3000:]!r}"
            if select.select([self._ours], [], [], 0.1)[0]:
                try:
                    self.said += os.read(self._ours, 65536).decode(errors="replace")
                except OSError:  # it has ended
                    assert re.search(pattern, ESCAPES.sub("", self.said)), self.said
        return found

    def forget(self) -> None:
        self.said = ""

    def types(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def ends(self) -> int:
        """Waits for its end, and reads on meanwhile: it waits until its last words are read."""
        deadline = time.monotonic() + PATIENCE_S
        while self.popen.poll() is None:
            assert time.monotonic() < deadline
            if select.select([self._ours], [], [], 0.1)[0]:
                try:
                    self.said += os.read(self._ours, 65536).decode(errors="replace")
                except OSError:
                    break
        return self.popen.wait(PATIENCE_S)

    def close(self) -> None:
        if self.popen.poll() is None:
            self.popen.kill()
            self.popen.wait()
        os.close(self._ours)
