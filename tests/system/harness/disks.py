"""A disk of a test's own: small, so that it can be full."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.needs import missing


@contextlib.contextmanager
def disk(folder: Path, kib: int) -> Iterator[Path]:
    """A tmpfs of that size on the folder; needs root."""
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        line = f"no disk can be mounted here: {done.stderr.strip()}; needs root"
        missing(line)
    try:
        yield folder
    finally:
        # Lazily: a process that the test ends a moment later may still have a file open.
        subprocess.run(["umount", "-l", str(folder)], check=True)


def remount(folder: Path, how: str) -> None:
    """ro or rw."""
    subprocess.run(["mount", "-o", f"remount,{how}", str(folder)], check=True)


def room(folder: Path) -> int:
    """Bytes that are free."""
    state = os.statvfs(folder)
    return state.f_bavail * state.f_frsize


def fill(folder: Path, *, leave: int = 0) -> Path:
    """A file that takes the room but for so many bytes (rounded down to pages)."""
    ballast = folder / "ballast"
    with ballast.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while (more := room(folder) - leave) > 0:
            file.write(bytes(min(more, 1 << 20)))
    return ballast
