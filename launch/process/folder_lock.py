"""The lock of a run's folder: one process of a kind works in it. The lock ends with the process.

Two learners would remove each other's checkpoints. The kernel holds the lock, so nothing is left to
be cleaned up after a kill. The lock file is not removed; only the lock on it matters.
"""

import contextlib
import errno
import fcntl
import logging
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from headrace.launch.config import run_file

log = logging.getLogger(__name__)

# A process that was just killed, or whose parent was, may need this long to end.
_PATIENCE_S = 5.0
_AGAIN_S = 0.05
_TAKEN = (errno.EAGAIN, errno.EACCES)


class FolderLockError(run_file.ConfigError):
    """Says, in one line, that the folder is in use or cannot be written into."""


class FolderInUseError(FolderLockError):
    """Says who is at work in the folder."""


def in_use(out: Path, who: str) -> bool:
    """Tells whether another process works in the folder as its `who`."""
    try:
        descriptor = os.open(out / f".{who}.lock", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False  # nobody ever did
    try:
        return not _lock_within(descriptor, 0.0)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def lock_folder(out: Path, who: str, *, patience_s: float = _PATIENCE_S) -> Iterator[None]:
    """Locks the folder for this process as its `who` (learner, evaluator, train), or raises
    FolderLockError."""
    path = out / f".{who}.lock"
    try:
        out.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise FolderLockError(
            f"cannot write into {out}: {error.strerror}; choose another folder with --out"
        ) from error
    try:
        if not _lock_within(descriptor, patience_s):
            raise FolderInUseError(
                f"{out} is in use: {_owner(descriptor, who)} is at work in it;"
                " stop that one, or choose another folder with --out"
            )
        with contextlib.suppress(OSError):  # on a full disk nobody learns who it is
            os.truncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _lock_within(descriptor: int, patience_s: float) -> bool:
    """Takes a record lock; False = another process held it until the deadline. Record locks are not
    inherited, so no child that lives on holds them."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno not in _TAKEN:
                log.warning(
                    "this folder cannot be locked, so see to it that it is used by one"
                    " learner only: %s",
                    error.strerror,
                )
                return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(_AGAIN_S)


def _owner(descriptor: int, who: str) -> str:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if words := os.pread(descriptor, 300, 0).decode():
            return f"another {who} ({words})"
    return f"another {who}"
