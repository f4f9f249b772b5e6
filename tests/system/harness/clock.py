"""A wall clock that can be moved, for some processes: a library put before the system's own."""

import shutil
import struct
import subprocess
from pathlib import Path

from tests.needs import missing

_SOURCE = Path(__file__).parent / "clock.c"


class Clock:
    """Of the processes that are started with `env`, and of their children."""

    def __init__(self, folder: Path, name: str) -> None:
        library, self._file = folder / "clock.so", folder / f"{name}.away"
        if not library.exists():
            _compile(library)
        self.move(0)
        self.env = {"LD_PRELOAD": str(library), "CLOCK_AWAY": str(self._file)}

    def move(self, seconds: int) -> None:
        """Away from the true time, at once. The file stays the same one: processes have it open."""
        exists = self._file.exists()
        with self._file.open("r+b" if exists else "wb") as file:
            file.write(struct.pack("q", seconds))


def _compile(library: Path) -> None:
    if shutil.which("gcc") is None:
        line = "not installed: apt-get install gcc libc6-dev"
        missing(line)
    command = ["gcc", "-O2", "-shared", "-fPIC", "-o", str(library), str(_SOURCE)]
    subprocess.run(command, check=True, timeout=60)
