"""Opens what a role of a run works with, its key and its journal; a fault in one is a
ConfigError."""

from pathlib import Path

from headrace.broker.journal.journal import Journal
from headrace.broker.security import keys
from headrace.broker.security.keys import Key, KeyFileError
from headrace.launch.config import run_file


def key(run: run_file.Run, role: str, given: Path | None) -> Key | None:
    """Returns the key given by --key, or the run's; None = this run works without keys."""
    if given is None and not run.security.curve:
        return None
    return from_file(given or path(run, role), role)


def path(run: run_file.Run, role: str) -> Path:
    """Returns where the run keeps a role's key."""
    return Path(run.security.keys) / f"{role}.key"


def authorised(run: run_file.Run) -> Path:
    """Returns the folder in which the broker finds the keys that may connect."""
    return Path(run.security.keys) / keys.AUTHORISED


def from_file(given: Path | None, role: str) -> Key | None:
    """Returns the key in `given`, None without one: a role that gets its run from the broker knows
    of no other key."""
    if given is None:
        return None
    try:
        return keys.read(given, role)
    except KeyFileError as error:
        raise run_file.ConfigError(str(error)) from error


def open_journal(folder: Path | None, role: str, inc: int) -> Journal:
    """Opens a process's journal in the folder that the user named; None = it writes nothing."""
    try:
        return Journal(folder, f"{role}-{inc}.log")
    except OSError as error:
        raise run_file.ConfigError(
            f"cannot write a ledger into {folder}: {error.strerror}; choose another with --ledger"
        ) from error
