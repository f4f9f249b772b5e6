"""Moves an action mask from an environment's info into its observation."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from headrace.actors.envs.action_spaces import action_parts
from headrace.actors.envs.convert import Env
from headrace.actors.envs.observation_spaces import PLAIN, parts_of


def is_observed(env: Env, name: str) -> bool:
    """Says whether the observation has a part of this name."""
    return any(part.leaf.name == name for part in parts_of(env.observation_space))


class InfoMask(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Adds info[name] of every step to the observation as a part of a Dict; an observation that was
    not a Dict becomes its part "obs"."""

    def __init__(self, env: Env, name: str) -> None:
        super().__init__(env)
        self._name = name
        self._count = sum(n for part in action_parts(env.action_space) for n in part.categories)
        inner = env.observation_space
        self._dict = isinstance(inner, spaces.Dict)
        self._parts = [part.leaf.name for part in parts_of(inner)]
        parts = inner.spaces if isinstance(inner, spaces.Dict) else {PLAIN: inner}
        mask = spaces.MultiBinary(max(1, self._count))
        self.observation_space = spaces.Dict({**parts, name: mask})

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return self._with_mask(observation, info), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, ended, cut, info = self.env.step(action)
        # After the last step nothing is chosen, and many environments say nothing.
        needed = not (ended or cut) or self._name in info
        return self._with_mask(observation, info, needed), reward, ended, cut, info

    def _with_mask(self, observation: Any, info: dict[str, Any], needed: bool = True) -> Any:
        mask = self._mask(info) if needed else np.zeros(self._count, np.int8)
        if self._dict:
            return {**observation, self._name: mask}
        return {PLAIN: observation, self._name: mask}

    def _mask(self, info: dict[str, Any]) -> NDArray[np.int8]:
        if self._name not in info:
            raise ValueError(
                f"env.mask names {self._name!r}, which is neither a part of the observation,"
                f" {self._parts}, nor an entry of info, {[*info]}"
            )
        given = info[self._name]
        # One array for each choice, as gymnasium's own spaces take them.
        if isinstance(given, tuple):
            given = np.concatenate([np.ravel(part) for part in given])
        mask = np.asarray(given)
        if mask.size != self._count or mask.dtype.kind not in "biu":
            raise ValueError(
                f"info[{self._name!r}] is {mask.dtype.name}{[*mask.shape]}; it must have 0 or 1 for"
                f" each of the {self._count} values to choose from"
            )
        allowed: NDArray[np.int8] = (mask != 0).astype(np.int8)
        return allowed.reshape(-1)
