"""What a sink is told of a run, when it begins and when it has ended."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Told:
    """Holds what a sink is told of the run when it is opened."""

    folder: Path
    settings: Mapping[str, str | float | bool]  # by section.key; what is no such value, as TOML
    id: str  # what the sink called this run when it was opened before; "" = it never was


@dataclass(frozen=True, slots=True)
class Kept:
    """Holds what an ended run has left: those that are there."""

    summary: Mapping[str, float] = field(default_factory=dict)
    pictures: Sequence[Path] = ()
    videos: Sequence[Path] = ()
    best: Path | None = None  # the folder of the best checkpoint
