"""Where a run lies when nobody says."""

import itertools
import re
from pathlib import Path


def run_folder(parent: Path, name: str, *, newest: bool) -> Path:
    """NAME, NAME-2, NAME-3 ..: the first that holds no run yet, or the one trained last."""
    if newest:
        numbered = re.compile(rf"{re.escape(name)}(-\d+)?")
        there = [folder for folder in parent.glob("*") if numbered.fullmatch(folder.name)]
        return max((f for f in there if _trained_at(f)), key=_trained_at, default=parent / name)
    folders = (parent / (name if n == 1 else f"{name}-{n}") for n in itertools.count(1))
    return next(folder for folder in folders if not (folder / "checkpoints").exists())


def _trained_at(folder: Path) -> float:
    """When its last checkpoint was written; 0 = it has none."""
    checkpoints = (folder / "checkpoints").glob("*")
    return max((path.stat().st_mtime for path in checkpoints), default=0.0)
