"""Says what a place for experiments must take, and which places there are."""

import importlib
import importlib.util
from collections.abc import Mapping
from typing import Any, Final, Protocol

from headrace.broker.errors import install_extra
from headrace.launch.config import run_file
from headrace.launch.config.run_sections import Sink
from headrace.launch.sinks.callbacks import Callbacks, CallbackSink
from headrace.launch.sinks.told import Kept, Told
from headrace.learner.models import named_code

# The package that each needs, and the extra that brings it; "" = none.
PACKAGES: Final[Mapping[str, tuple[str, str]]] = {
    "tensorboard": ("tensorboard", "tensorboard"),
    "wandb": ("wandb", "wandb"),
    "mlflow": ("mlflow", "mlflow"),
    "trackio": ("trackio", "trackio"),
    "csv": ("", ""),
    "parquet": ("pyarrow", "parquet"),
}


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
    if ":" in name:
        return CallbackSink(named_code.imported(name)(), told.folder)
    module: Any = importlib.import_module(f"headrace.launch.sinks.to_{name}")
    sink: OpenSink = module.open_sink(told)
    return sink


def check_sink(name: Sink) -> None:
    """Raises ConfigError for one whose package is not here, or that is no class of callbacks."""
    if ":" in name:
        try:
            found = named_code.function("log.sinks", name)
        except named_code.OwnCodeError as error:
            raise run_file.ConfigError(str(error)) from error
        if not (isinstance(found, type) and issubclass(found, Callbacks)):
            raise run_file.ConfigError(f'log.sinks = "{name}" is no class of headrace.Callbacks')
        return
    if name not in PACKAGES:
        raise run_file.ConfigError(
            f"there is no sink {name}: it is one of {', '.join(PACKAGES)}, or module:class"
        )
    package, extra = PACKAGES[name]
    if package and importlib.util.find_spec(package) is None:
        raise run_file.ConfigError(f"the sink {name} needs a package: {install_extra(extra)}")
