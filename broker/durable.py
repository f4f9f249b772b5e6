"""Files that are written whole or not at all, and outlast a power cut once they are.

    write    another name -> sync -> its own name -> sync of the folder
    commit   the same for what was written under another name by somebody else

On any failure what was there before is still there: a full disk or a kill never leaves half a file.
"""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path


def write(path: Path, content: str | bytes, *, mode: int = 0o666, new: bool = False) -> None:
    """Writes a file; OSError when that is not possible.

    `mode`: its rights, less the umask. `new`: never over what is there, FileExistsError. What is
    not a regular file (/dev/stdout) is written to directly.
    """
    data = content.encode() if isinstance(content, str) else content
    if not new:
        if path.exists() and not path.is_file():
            path.write_bytes(data)
            return
        path = Path(os.path.realpath(path))  # a link stays one
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.unlink(missing_ok=True)  # of a killed process that had our number
        put(part, [data], mode=mode)
        if new:
            os.link(part, path)  # unlike a rename it refuses to write over
            sync(path.parent)
        else:
            commit(part, path)
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def put(path: Path, pieces: Iterable[bytes | memoryview], *, mode: int = 0o666) -> None:
    """Writes a file that is not there yet, and syncs it; half of it may be left when that fails."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.writelines(pieces)
        file.flush()
        os.fsync(file.fileno())


def commit(part: Path, path: Path) -> None:
    """Gives a whole file or folder its name, in place of what had it."""
    sync(part)
    part.rename(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Makes a file's content durable, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
