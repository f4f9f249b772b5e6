"""Finds the folder in which the processes of a run left their ledgers."""

from pathlib import Path

from headrace.launch.config import run_file, starts


def ledger_folder(folder: Path, *, files: str, missing: str) -> Path:
    """Returns the folder with such files; `folder` is the run's folder or the ledger's own.
    ConfigError where there are none, with `missing`."""
    if not folder.is_dir():
        raise run_file.ConfigError(f"{folder}: no such folder")
    for found in (folder / "ledger", folder):
        if any(found.glob(files)):
            return found
    if several := ", ".join(map(str, starts.policy_folders(folder))):
        raise run_file.ConfigError(f"{folder} holds several runs, name one of them: {several}")
    raise run_file.ConfigError(f"{folder} {missing}")
