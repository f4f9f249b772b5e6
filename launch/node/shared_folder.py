"""A node's folder in shared memory: the shelf and the socket. It is removed with the node; the next
node removes what a killed one left."""

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

_MEMORY = Path("/dev/shm")
_PREFIX = "headrace-node-"
# A folder younger than this may not have its lock yet.
_YOUNG_S = 10.0


@contextlib.contextmanager
def shared_folder() -> Iterator[Path]:
    """Makes the folder in memory where that can be written, else where temporary files are."""
    place = _MEMORY if os.access(_MEMORY, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())
    _remove_abandoned(place)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
    # The kernel releases it however we end: so the next node knows what nobody needs.
    lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _remove_abandoned(place: Path) -> None:
    for left in place.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            found = left.lstat()
            if found.st_uid != os.getuid() or time.time() - found.st_mtime < _YOUNG_S:
                continue
            lock = os.open(left, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(lock)
