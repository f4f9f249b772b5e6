"""Splits a run file with [policies.NAME] into the run of each policy.

What stands in the file counts for all of them, what stands in [policies.NAME] for that one: which
agents it plays, and sections of a run, as model.hidden or [policies.NAME.learner]. With `plays` it
is not trained: random, module:function, or a run's folder.
"""

import copy
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from headrace.launch.config import run_file
from headrace.launch.config.run_file import ConfigError
from headrace.launch.config.run_sections import RunSection

_SECTION: Final = "policies"
_AGENTS: Final = "agents"
_PLAYS: Final = "plays"  # who plays them, where nobody is trained
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")


class PolicyRun(NamedTuple):
    """Holds what a run file says of one policy."""

    name: str
    tables: dict[str, Any]  # its run, no default filled in
    sets: tuple[str, ...]  # settings of the command line that are for it


def has_policies(name_or_path: str) -> bool:
    """Tells whether a run file names policies."""
    return _SECTION in run_file.raw(name_or_path)[1]


def split(name_or_path: str, sets: Sequence[str]) -> list[PolicyRun]:
    """Returns the run of each policy of a file, in its order; `sets`: section.key=value for all,
    policies.NAME.section.key=value for one. ConfigError for what is wrong."""
    path, tables = run_file.raw(name_or_path)
    policies = tables.pop(_SECTION)
    tables.setdefault("run", {}).setdefault("name", path.stem)
    if not isinstance(policies, dict) or not policies:
        raise ConfigError(f"{path.name}: [policies] holds no table; write [policies.NAME]")
    for name in _named(sets) - policies.keys():
        raise ConfigError(f"--set policies.{name}: there are the policies {', '.join(policies)}")
    for name, own in policies.items():
        _check(name, own, f"{path.name}: policies.{name}")
    others = {
        agent: own[_PLAYS] for own in policies.values() if _PLAYS in own for agent in own[_AGENTS]
    }
    if others:
        tables.setdefault("env", {})["others"] = others
    learning = {name: own for name, own in policies.items() if _PLAYS not in own}
    if not learning:
        raise ConfigError(f"{path.name}: every policy has {_PLAYS}, and none is left to train")
    return [
        PolicyRun(name, _tables(name, own, tables, place), tuple(_for_policy(name, sets, place)))
        for place, (name, own) in enumerate(learning.items())
    ]


def _check(name: str, own: Any, place: str) -> None:
    """Raises ConfigError unless this is what may stand in [policies.NAME]."""
    if not _NAME.fullmatch(name) or not isinstance(own, dict):
        raise ConfigError(
            f"{place} must be a table, and its name letters, digits, - and _, at most 32"
        )
    agents = own.get(_AGENTS)
    if not isinstance(agents, list) or not agents:
        raise ConfigError(f'{place}.agents must name the agents that it plays, as ["wolf_*"]')
    for section, table in own.items():
        if section in (_AGENTS, _PLAYS):
            continue
        if _PLAYS in own:
            raise ConfigError(f"{place}.{section}: nothing of {own[_PLAYS]!r} can be set here")
        if section not in run_file.SECTIONS or not isinstance(table, dict):
            raise ConfigError(f"{place}.{section} is no section of a run, nor {_AGENTS}, {_PLAYS}")


def _tables(name: str, own: dict[str, Any], shared: dict[str, Any], place: int) -> dict[str, Any]:
    merged = copy.deepcopy(shared)
    merged["run"]["seed"] = _counted(merged["run"].get("seed", RunSection().seed), place)
    for section, table in own.items():
        if section != _AGENTS:
            merged.setdefault(section, {}).update(table)
    merged.setdefault("env", {})["agents"] = own[_AGENTS]
    merged["run"]["name"] = f"{shared['run']['name']}-{name}"
    return merged


def _parts(setting: str) -> list[str]:
    return setting.partition("=")[0].split(".")


def _named(sets: Sequence[str]) -> set[str]:
    """Returns the policies that the settings name."""
    return {parts[1] for parts in map(_parts, sets) if parts[0] == _SECTION and len(parts) > 1}


def _counted(seed: Any, place: int) -> Any:
    """Returns a policy's seed, where one is given for all: they would begin with the same weights,
    and shuffle their batches alike. What is no number is left to whoever reads it."""
    return seed + place if type(seed) is int else seed


def _for_policy(name: str, sets: Sequence[str], place: int) -> list[str]:
    own, shown = f"{_SECTION}.{name}.", []
    for setting in sets:
        if setting.startswith(own):
            key = setting.removeprefix(own)
            shown.append(f"env.{key}" if _parts(key) == [_AGENTS] else key)
        elif _parts(setting) == ["run", "seed"] and (seed := setting.partition("=")[2]).isdecimal():
            shown.append(f"run.seed={_counted(int(seed), place)}")
        elif _parts(setting)[0] != _SECTION:
            shown.append(setting)
    return shown
