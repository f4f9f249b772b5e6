"""Environments: made here and nowhere else, and what they give and take as plain data."""

import importlib
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from actors.config import EnvConfig
from learner.spaces import Discrete, Leaf, Spaces

Env = gymnasium.Env[Any, Any]


class EnvError(Exception):
    """The environment is at fault, or what was said about it; one line that names what to
    change."""

    def __init__(self, sentence: str) -> None:
        super().__init__(" ".join(sentence.split()))


def make_env(config: EnvConfig) -> Env:
    """One environment, by gymnasium id or module:factory.

    A gymnasium id may carry a module to import first, as in ale_py:ALE/Pong-v5; its version makes
    it no name that Python could know.
    """
    if config.id.partition(":")[2].isidentifier():
        env = _guarded(config, lambda: _factory(config.id)(**config.kwargs))
    else:
        env = _guarded(
            config,
            lambda: gymnasium.make(config.id, disable_env_checker=True, **config.kwargs),
        )
    if not isinstance(env, gymnasium.Env):
        raise EnvError(f"{config.id} made a {type(env).__name__}, which is no gymnasium.Env")
    return env


def make_vector(config: EnvConfig, envs: int) -> VectorEnv[Any, Any, Any]:
    """The environment's own vector class, `envs` wide."""
    try:
        vector = gymnasium.make_vec(
            config.id, envs, vectorization_mode="vector_entry_point", **config.kwargs
        )
    except Exception as error:
        raise EnvError(
            f"{config.id} has no vector class that can be made ({_first_line(error)});"
            ' set actor.stepping = "inline"'
        ) from error
    mode = vector.metadata.get("autoreset_mode")
    if mode is not AutoresetMode.NEXT_STEP:
        raise EnvError(
            f"the vector class of {config.id} resets by {mode}; only NEXT_STEP keeps the last"
            ' observation of an episode. Set actor.stepping = "inline"'
        )
    return vector


def spaces_of(env: Env | VectorEnv[Any, Any, Any], name: str) -> Spaces:
    """Its spaces as data; unsupported ones are named."""
    observation = getattr(env, "single_observation_space", env.observation_space)
    action = getattr(env, "single_action_space", env.action_space)
    if not isinstance(observation, gymnasium.spaces.Box):
        raise EnvError(f"{name}: observation {observation} is not supported yet; only Box is")
    if not isinstance(action, gymnasium.spaces.Discrete):
        raise EnvError(f"{name}: action {action} is not supported yet; only Discrete is")
    if int(action.start) != 0:
        raise EnvError(f"{name}: actions must count from 0, these start at {action.start}")
    leaf = Leaf("obs", np.dtype(observation.dtype).str, tuple(int(n) for n in observation.shape))
    return Spaces((leaf,), Discrete(int(action.n)))


def probe(config: EnvConfig) -> Spaces:
    """The spaces of the environment that the run names."""
    env = make_env(config)
    try:
        return spaces_of(env, config.id)
    finally:
        env.close()


def _factory(name: str) -> Callable[..., Any]:
    module, _, attribute = name.partition(":")
    made = getattr(importlib.import_module(module), attribute)
    if not callable(made):
        raise TypeError(f"{name} is not callable")
    return made  # type: ignore[no-any-return]


def _guarded(config: EnvConfig, make: Callable[[], Any]) -> Any:
    try:
        return make()
    except gymnasium.error.Error as error:
        raise EnvError(f"env.id = {config.id!r}: {_first_line(error)}") from error
    except Exception as error:
        kind = type(error).__name__
        raise EnvError(
            f"env.id = {config.id!r} cannot be made: {kind}: {_first_line(error)}"
        ) from error


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
