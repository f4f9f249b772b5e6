"""Finds the installed package that knows an environment's id."""

import contextlib
import importlib
import re
from collections.abc import Iterator
from importlib import metadata

import gymnasium


def package_of(env_id: str) -> str:
    """Returns the package to write before the id, as in minigrid:MiniGrid-Empty-5x5-v0: the one
    that registers it as it is imported. "" = the id is known without, or no package is found."""
    if re.search("[:/]", env_id) or _known(env_id):
        return ""
    for module in dict.fromkeys(_candidates(env_id)):
        with contextlib.suppress(Exception):  # another package's, which may be broken
            importlib.import_module(module)
        if _known(env_id):
            return module
    return ""


def _candidates(env_id: str) -> Iterator[str]:
    """Yields modules whose names begin as the id does, and those that declare environments."""
    first = re.split(r"\W", env_id)[0].lower()
    for module in metadata.packages_distributions() if first else ():
        if module.replace("_", "").lower().startswith(first):
            yield module
    for declared in metadata.entry_points(group="gymnasium.envs"):
        yield declared.module.partition(".")[0]


def _known(env_id: str) -> bool:
    with contextlib.suppress(gymnasium.error.Error):
        return bool(gymnasium.spec(env_id))
    return False
