"""Says in one line that a file cannot be written."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from headrace.launch.config.run_file import ConfigError


@contextlib.contextmanager
def writing(what: Path | str, advice: str = "") -> Iterator[None]:
    """Raises ConfigError where this cannot be written inside: why, and what to do instead."""
    try:
        yield
    except OSError as error:
        end = f"; {advice}" if advice else ""
        raise ConfigError(f"cannot write {what}: {error.strerror or error}{end}") from error
