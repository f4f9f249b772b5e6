"""Shows a traceback of the user's code once, whichever process of a run has it first: the samplers,
the learner and the evaluator all run the same environment and network."""

import contextlib
import hashlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

VARIABLE: Final = "HEADRACE_TRACEBACKS"  # names the folder in which they know of one another
_FRAME: Final = '  File "'


@contextlib.contextmanager
def shared(folder: Path) -> Iterator[None]:
    """Makes processes that are started meanwhile know, in this folder, what the others have
    shown."""
    os.environ[VARIABLE] = str(folder)
    try:
        yield
    finally:
        del os.environ[VARIABLE]


def once(record: logging.LogRecord) -> logging.LogRecord:
    """Returns the record, or one without its traceback if that was shown."""
    told, folder = getattr(record, "traceback", ""), os.environ.get(VARIABLE)
    if not told or folder is None or _first(Path(folder), told):
        return record
    words = f"{record.getMessage()} (the traceback is shown once, above)"
    return logging.makeLogRecord({**vars(record), "msg": words, "args": (), "traceback": ""})


def _first(folder: Path, told: str) -> bool:
    """Tells whether nobody has shown this place before. What was said of it may differ: a seed."""
    frames = [line for line in told.splitlines() if line.startswith(_FRAME)]
    name = hashlib.sha256("\n".join(frames or [told]).encode(errors="replace")).hexdigest()
    try:
        (folder / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    except OSError:  # a full disk: rather twice than never
        return True
    return True
