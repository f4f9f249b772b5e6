"""A terminal on which a live view moves while other processes have things to say.

Whoever writes beside the view breaks it: its title stays behind, and comes once more. So standard
error becomes a pipe, before children are forked that have it too, and what comes out of the pipe is
shown line by line above the view.
"""

import os
import threading
from collections.abc import Callable


class Terminal:
    """Standard error of this process and its children, from now until `close`."""

    def __init__(self) -> None:
        self._own = os.dup(2)
        self.file = os.fdopen(os.dup(2), "w", encoding="utf-8", errors="replace")  # for the view
        self._pipe, write = os.pipe()
        os.dup2(write, 2)
        os.close(write)
        self._reader: threading.Thread | None = None  # None = nobody shows the lines yet

    def pass_on(self, show: Callable[[str], object]) -> None:
        """Has every line shown from here on, in a thread; what was written before, too. To be
        called once all that is forked is forked."""
        self._reader = threading.Thread(target=self._read, args=(show,), daemon=True)
        self._reader.start()

    def close(self) -> None:
        """Gives standard error back, and shows what is still on its way."""
        os.dup2(self._own, 2)
        os.close(self._own)
        if self._reader is None:
            self.pass_on(self._plain)
        assert self._reader is not None
        # Until nobody holds the pipe any more; who outlives his children is not waited for.
        self._reader.join(timeout=1.0)

    def _read(self, show: Callable[[str], object]) -> None:
        with os.fdopen(self._pipe, "rb") as lines:
            for line in lines:
                show(line.decode(errors="replace").rstrip("\r\n"))

    def _plain(self, line: str) -> None:
        self.file.write(f"{line}\n")
        self.file.flush()
