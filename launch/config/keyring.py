"""Finds and reads the keys of a run's roles."""

from pathlib import Path

from headrace.broker.security import keys
from headrace.broker.security.keys import Key
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
    return None if given is None else keys.read(given, role)
