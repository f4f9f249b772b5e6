"""Where two runs differ, in words. Pure."""

from pathlib import Path
from typing import Any, NamedTuple

from launch import toml
from launch.config import ConfigError


class Origin(NamedTuple):
    """What a checkpoint was trained by."""

    shared: dict[str, Any]
    spaces: str  # their digest
    optimiser: str


def first_difference(a: dict[str, Any], b: dict[str, Any]) -> str | None:
    """The first key by name whose value there (`shared` dict a) is not the one here (b)."""
    # Compared as text: Python takes 1, 1.0 and True for equal, a digest does not.
    there, here = (
        {
            f"{name}.{key}": toml.value(held)
            for name, table in side.items()
            for key, held in table.items()
        }
        for side in (a, b)
    )
    for place in sorted(there.keys() | here.keys()):
        if there.get(place) != here.get(place):
            return f"{place}: {there.get(place, 'absent')} there, {here.get(place, 'absent')} here"
    return None


def no_continuation(before: dict[str, Any], now: dict[str, Any]) -> str | None:
    """Why what was trained by one `shared` dict cannot go on by another; None = it can."""
    for section, keys in (("env", None), ("model", None), ("algorithm", ["name"])):
        sides = [
            {section: {k: v for k, v in side.get(section, {}).items() if keys is None or k in keys}}
            for side in (before, now)
        ]
        difference = first_difference(*sides)
        if difference is not None:
            return difference
    return None


def refuse_another(path: Path, there: Origin, here: Origin) -> None:
    """ConfigError when what is in `path` was trained by another run: to pass over it would forget
    it, so a person must choose."""
    difference = no_continuation(there.shared, here.shared)
    if difference is not None:
        raise ConfigError(f"{path} is of another run: {difference} (there = in the checkpoint)")
    if there.spaces != here.spaces:
        raise ConfigError(f"{path} was trained on an environment with other spaces")
    if there.optimiser != here.optimiser:
        raise ConfigError(
            f'{path} was trained by {there.optimiser}; set learner.optimiser = "{there.optimiser}"'
        )
