"""Opens what a role of a run works with, its key and its journal; what is wrong with one is a
ConfigError."""

from pathlib import Path

from headrace.broker.journal.journal import Journal
from headrace.broker.security import keys
from headrace.broker.security.keys import Key, KeyFileError
from headrace.launch.config import run_file


def key(run: run_file.Run, role: str, given: Path | None) -> Key | None:
    """The one given by --key, or the run's; None = this run works without keys."""
    if given is None and not run.security.curve:
        return None
    return from_file(given or path(run, role), role)


def path(run: run_file.Run, role: str) -> Path:
    """Where the run has it."""
    return Path(run.security.keys) / f"{role}.key"


def authorised(run: run_file.Run) -> Path:
    """Where the broker finds who may connect."""
    return Path(run.security.keys) / keys.AUTHORISED


def from_file(given: Path | None, role: str) -> Key | None:
    """A role that has its run from the broker knows of no key but the one given."""
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
