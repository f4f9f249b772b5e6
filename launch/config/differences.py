"""The differences between two runs, in words. Pure."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from headrace.actors.envs.toys.registered import registered_id
from headrace.launch.config import toml_text
from headrace.launch.config.run_file import ConfigError


class Origin(NamedTuple):
    """Holds what a checkpoint was trained by."""

    shared: dict[str, Any]
    spaces: str  # their digest
    optimiser: str


# What was trained fits these alone: another task, network or optimiser has other weights or state.
_FIXED: Mapping[str, tuple[str, ...] | None] = {  # section -> its keys; None = all of them
    "env": None,
    "model": None,
    "algorithm": ("name",),
    "learner": ("optimiser",),
}
# Of the first weights only: what was trained has weights of its own.
_FIRST_WEIGHTS = {"model.core_bias"}
# What is shown or sent only: no weight that is trained depends on it.
_SHOWN = {"env.metrics", "env.policy", "model.wire"}
# Of a core that an older run, which lacks them, cannot have: model.core tells that one.
_OF_A_TRANSFORMER = {"model.core_context", "model.core_layers"}
_MISSING = "absent"
# Of a key that came later: what an older run, which lacks it, did without.
_NONE = {'""', "{}", "[]", "0", "false"}


class Difference(NamedTuple):
    """Holds a key whose values are not the same, as TOML."""

    place: str  # section.key
    there: str
    here: str


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Difference]:
    """Yields every key, sorted by name, whose value in `a` (there) is not the one in `b` (here)."""
    # Compared as text: Python takes 1, 1.0 and True for equal, a digest does not.
    there, here = (
        {
            f"{name}.{key}": "not set" if held is None else toml_text.value(_named_now(held))
            for name, table in side.items()
            for key, held in table.items()
        }
        for side in (a, b)
    )
    for place in sorted(there.keys() | here.keys()):
        found = Difference(place, there.get(place, _MISSING), here.get(place, _MISSING))
        if found.there != found.here:
            yield found


def _named_now(held: Any) -> Any:
    """Returns what an older run calls one of our environments by its id; others as they are."""
    return registered_id(held) if isinstance(held, str) else held


def first_difference(a: Mapping[str, Any], b: Mapping[str, Any]) -> str | None:
    """Returns the first difference in words; None = there is none."""
    return next((_words(found) for found in differences(a, b)), None)


def no_continuation(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Returns every reason why a run with the sections `now` cannot continue one that was trained
    with `before`; None = it can."""
    found = [
        _words(difference)
        for section, keys in _FIXED.items()
        for difference in differences(
            *(
                {section: {k: v for k, v in side.get(section, {}).items() if not keys or k in keys}}
                for side in (before, now)
            )
        )
        if difference.place not in _FIRST_WEIGHTS | _SHOWN
        and not (
            difference.there == _MISSING
            and (difference.here in _NONE or difference.place in _OF_A_TRANSFORMER)
        )
    ]
    return "; ".join(found) or None


def refuse_another(path: Path, there: Origin, here: Origin) -> None:
    """Raises ConfigError when what is in `path` was trained by another run: to pass over it would
    forget it, so a person must choose."""
    difference = no_continuation(there.shared, here.shared)
    if difference is not None:
        raise ConfigError(f"{path} is of another run: {difference} (there = in the checkpoint)")
    if there.spaces != here.spaces:
        raise ConfigError(f"{path} was trained on an environment with other spaces")
    if there.optimiser != here.optimiser:
        raise ConfigError(
            f'{path} was trained by {there.optimiser}; set learner.optimiser = "{there.optimiser}"'
        )


def _words(found: Difference) -> str:
    return f"{found.place}: {found.there} there, {found.here} here"
