"""Says in one line that a file cannot be written."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from headrace.launch.config.run_file import ConfigError


@contextlib.contextmanager
def writing(
    what: Path | str, advice: str = "", kind: type[ConfigError] = ConfigError
) -> Iterator[None]:
    """Raises an error of this kind where something cannot be written: why, and what to do."""
    try:
        yield
    except OSError as error:
        end = f"; {advice}" if advice else ""
        raise kind(f"cannot write {what}: {error.strerror or error}{end}") from error
