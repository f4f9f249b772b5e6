"""A terminal that shows a live view while other processes write lines to it.

A process that writes beside the view breaks it: the view's title stays behind and appears twice. So
standard error becomes a pipe before children are forked that inherit it, and what comes out of the
pipe is shown line by line above the view.
"""

import os
import threading
from collections.abc import Callable


class CapturedTerminal:
    """Captures standard error of this process and its children, from now until `close`."""

    def __init__(self) -> None:
        self._own = os.dup(2)
        self.file = os.fdopen(os.dup(2), "w", encoding="utf-8", errors="replace")  # for the view
        self._pipe, write = os.pipe()
        os.dup2(write, 2)
        os.close(write)
        self._reader: threading.Thread | None = None  # None = the lines are not shown yet

    def pass_on(self, show: Callable[[str], object]) -> None:
        """Shows every line from here on in a thread, and the lines written before, too. Call it
        after the last fork."""
        self._reader = threading.Thread(target=self._read, args=(show,), daemon=True)
        self._reader.start()

    def close(self) -> None:
        """Restores standard error, and shows what is still in the pipe."""
        os.dup2(self._own, 2)
        os.close(self._own)
        if self._reader is None:
            self.pass_on(self._plain)
        assert self._reader is not None
        # Ends when no process holds the pipe; it does not wait for children that outlive this one.
        self._reader.join(timeout=1.0)

    def _read(self, show: Callable[[str], object]) -> None:
        with os.fdopen(self._pipe, "rb") as lines:
            for line in lines:
                show(line.decode(errors="replace").rstrip("\r\n"))

    def _plain(self, line: str) -> None:
        self.file.write(f"{line}\n")
        self.file.flush()
