"""The parts of a GPU that several learners take: hundredths of it, which end with the process.

Each is a byte of a file that the process has locked, so nothing is left to be cleaned up after a
kill. Counted are this user's processes that see the same folder for temporary files.
"""

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from headrace.launch.config import run_file

_PARTS = 100
# A process that was just killed may need this long to end.
_PATIENCE_S = 5.0
_AGAIN_S = 0.05


@contextlib.contextmanager
def taken(share: float, gpu: str, *, patience_s: float = _PATIENCE_S) -> Iterator[None]:
    """Takes this share of the GPU of that name; ConfigError if others leave too little of it."""
    wanted = max(1, round(_PARTS * share))
    path = Path(tempfile.gettempdir()) / f"headrace-gpu-{gpu}-{os.getuid()}"
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        raise run_file.ConfigError(
            f"learner.gpu_share: cannot count who uses the GPU in {path}: {error.strerror}"
        ) from error
    try:
        deadline = time.monotonic() + patience_s
        while (found := _take(descriptor, wanted)) < wanted:
            if time.monotonic() >= deadline:
                raise run_file.ConfigError(
                    f"learner.gpu_share = {share:g}: other learners have {_PARTS - found} % of"
                    f" GPU {gpu}; lower it, or end one of them"
                )
            time.sleep(_AGAIN_S)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, wanted: int) -> int:
    """Locks so many free bytes, or none; returns how many it could have."""
    found = 0
    for at in range(_PARTS):
        if found == wanted:
            return found
        with contextlib.suppress(BlockingIOError, PermissionError):
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, at)
            found += 1
    if found < wanted:
        fcntl.lockf(descriptor, fcntl.LOCK_UN, _PARTS, 0)
    return found
