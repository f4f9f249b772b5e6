"""A process's journal in the folder that the user named."""

from pathlib import Path

from broker.journal import Journal
from launch.config import ConfigError


def open_journal(folder: Path | None, role: str, inc: int) -> Journal:
    """None writes nothing."""
    try:
        return Journal(folder, f"{role}-{inc}.log")
    except OSError as error:
        raise ConfigError(
            f"cannot write a ledger into {folder}: {error.strerror}; choose another with --ledger"
        ) from error
