"""Files that commands are asked to write: is there room for one where it was named?"""

import errno
from pathlib import Path


def make_room(path: Path) -> None:
    """Its folder is there, and it is no folder itself; OSError whose strerror is for a user."""
    if not path.name or path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a folder; name a file", str(path))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise NotADirectoryError(errno.ENOTDIR, f"{path.parent} is no folder", str(path)) from error
