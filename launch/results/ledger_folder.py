"""Finds the folder in which the processes of a run left their ledgers."""

from pathlib import Path

from headrace.launch.config import run_file


def ledger_folder(folder: Path, *, files: str, missing: str) -> Path:
    """Returns the folder with such files; `folder` is the run's folder or the ledger's own.
    ConfigError where there are none, with `missing`."""
    if not folder.is_dir():
        raise run_file.ConfigError(f"{folder}: no such folder")
    for found in (folder / "ledger", folder):
        if any(found.glob(files)):
            return found
    raise run_file.ConfigError(f"{folder} {missing}")
