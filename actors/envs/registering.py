"""Finds the installed package that knows an environment's id, and what is registered of one."""

import contextlib
import importlib
import re
from collections.abc import Iterator
from importlib import metadata

import gymnasium

from headrace.actors.config import EnvConfig


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


def episode_limit(config: EnvConfig) -> int:
    """Returns the most steps of an episode, as the environment is registered; 0 = it says none."""
    given = config.kwargs.get("max_episode_steps")
    with contextlib.suppress(gymnasium.error.Error, ImportError):
        return int(given or gymnasium.spec(config.id).max_episode_steps or 0)
    return 0


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
