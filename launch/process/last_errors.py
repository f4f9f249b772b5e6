"""Why a run ended, for the Python that started it.

Its lines may go to a terminal, and the last of them may be another process's. So each process of
the run keeps its last error in a file of its own, in the folder that HEADRACE_REASONS names.
"""

import contextlib
import logging
import os
from pathlib import Path

from headrace.launch.process import log_lines
from headrace.launch.process.log_lines import Identity

VARIABLE = "HEADRACE_REASONS"
_OWN = "train"  # the process that was started; it starts the others


class LastErrorHandler(logging.Handler):
    """Keeps the last error of this process in a file; an error that cannot be written is not
    kept."""

    def __init__(self, folder: Path, identity: Identity) -> None:
        super().__init__(logging.ERROR)
        self._folder = folder
        self._identity = identity

    def emit(self, record: logging.LogRecord) -> None:
        _write(self._folder / self._identity.role, log_lines.text_of(record))


def install(identity: Identity) -> None:
    """Installs the handler, if the Python that started the run wants to know."""
    folder = os.environ.get(VARIABLE)
    if folder:
        logging.getLogger().addHandler(LastErrorHandler(Path(folder), identity))


def refused(error: Exception) -> None:
    """Keeps an error in the user's input, after which nothing else will be logged."""
    folder = os.environ.get(VARIABLE)
    if folder:
        _write(Path(folder) / _OWN, str(error))


def reason(folder: Path) -> str:
    """Returns why `headrace train` ended badly; "" = it did not say. Where it names another
    process, or only the learner said something, that process's line."""
    said = {path.name: _read(path) for path in folder.iterdir()}
    own = said.get(_OWN, "")
    return said.get(own.partition(" ")[0]) or own or said.get("learner", "")


def _write(path: Path, text: str) -> None:
    with contextlib.suppress(OSError):
        path.write_text(" ".join(text.split()), encoding="utf-8", errors="replace")


def _read(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace")
    return ""
