"""Trains and loads policies from Python: `headrace.train("cartpole", stop_return=475)`.

The names below are read from headrace.launch.api when first used, so that importing one room does
not import the others, nor torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.launch.api import (
        Callbacks,
        Config,
        ConfigError,
        Run,
        StopRun,
        TrainedPolicy,
        load_policy,
        train,
    )

__all__ = [
    "Callbacks",
    "Config",
    "ConfigError",
    "Run",
    "StopRun",
    "TrainedPolicy",
    "load_policy",
    "train",
]


def __getattr__(name: str) -> Any:
    """Imports a public name on its first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from headrace.launch import api

    return globals().setdefault(name, getattr(api, name))


def __dir__() -> list[str]:
    """Lists the public names, too, before their first use."""
    return sorted({*globals(), *__all__})
