"""Says what a place for experiments must take, and which places there are."""

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from headrace.launch.config import run_file
from headrace.launch.config.run_sections import Sink

# The package that each needs, and the extra that brings it; "" = none.
PACKAGES: Final[Mapping[Sink, tuple[str, str]]] = {
    "tensorboard": ("tensorboard", "tensorboard"),
    "wandb": ("wandb", "wandb"),
    "mlflow": ("mlflow", "mlflow"),
    "trackio": ("trackio", "trackio"),
    "csv": ("", ""),
    "parquet": ("pyarrow", "parquet"),
}


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


class OpenSink(Protocol):
    """Takes what a run has written down."""

    id: str  # what it calls this run; "" = it keeps nothing between two times
    where: str  # how a person finds it

    def row(self, figures: Mapping[str, float], *, step: int, at: float) -> None:
        """Takes figures by their names at a step; `at`: when that was, by time.time()."""

    def end(self, kept: Kept) -> None:
        """Takes what an ended run has left; nothing follows."""

    def close(self) -> None:
        """Sends what is not sent yet."""


def open_sink(name: Sink, told: Told) -> OpenSink:
    """Opens one; ConfigError without its package."""
    check_sink(name)
    module: Any = importlib.import_module(f"headrace.launch.sinks.to_{name}")
    sink: OpenSink = module.open_sink(told)
    return sink


def check_sink(name: Sink) -> None:
    """Raises ConfigError for one whose package is not here."""
    package, extra = PACKAGES[name]
    if package and importlib.util.find_spec(package) is None:
        raise run_file.ConfigError(
            f"the sink {name} needs a package: pip install 'headrace[{extra}]'"
        )
