"""Adds parts to an environment's observation: an action mask from its info, and which policy of a
population plays."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from headrace.actors.config import EnvConfig
from headrace.actors.envs.action_spaces import action_parts
from headrace.actors.envs.agents.kinds import agents_in
from headrace.actors.envs.convert import Env, EnvError
from headrace.actors.envs.observation_spaces import PLAIN, parts_of
from headrace.learner.spaces import POLICY

# A policy of a population plays at least so many steps before another one takes its place: an
# optimiser step needs some of each.
_LEAST_STEPS = 128


def with_mask(env: Env, config: EnvConfig) -> Env:
    """Returns the environment with env.mask as a part of its observation."""
    try:
        return env if _is_observed(env, config.mask) else InfoMask(env, config.mask)
    except TypeError:  # spaces that as_data() names
        return env


def with_policy(env: Any, config: EnvConfig, seed: int) -> Env:
    """Returns the environment as a population plays it."""
    if not isinstance(env, gymnasium.Env):
        raise EnvError(
            f"env.population = {config.population}: its policies play alone, and {config.id} has"
            f" {agents_in(env)} agents"
        )
    if config.policy >= config.population:
        raise EnvError(
            f"env.policy = {config.policy}: the policies are numbered 0 to {config.population - 1}"
        )
    try:
        return DrawnPolicy(env, config.population, config.policy, seed)
    except TypeError:  # spaces that as_data() names
        return env


def _is_observed(env: Env, name: str) -> bool:
    return any(part.leaf.name == name for part in parts_of(env.observation_space))


class InfoMask(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Adds info[name] of every step to the observation."""

    def __init__(self, env: Env, name: str) -> None:
        super().__init__(env)
        self._name = name
        self._count = sum(n for part in action_parts(env.action_space) for n in part.categories)
        self._parts = [part.leaf.name for part in parts_of(env.observation_space)]
        self._dict = isinstance(env.observation_space, spaces.Dict)
        mask = spaces.MultiBinary(max(1, self._count))
        self.observation_space = _with_part(env.observation_space, name, mask)

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
        return _added(self._dict, observation, self._name, mask)

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


class DrawnPolicy(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Draws which policy of a population plays an episode, and adds its number to the observation.

    All of them come in turn, in an order of the dice, again and again. `fixed`: one that plays all
    episodes; -1 = none.
    """

    def __init__(self, env: Env, policies: int, fixed: int, seed: int) -> None:
        super().__init__(env)
        if _is_observed(env, POLICY):
            raise EnvError(
                f"env.population adds {POLICY!r} to the observation, which has such a part already"
            )
        self._policies, self._fixed = policies, fixed
        self._dict = isinstance(env.observation_space, spaces.Dict)
        self._dice = np.random.default_rng(seed)
        self._waiting: list[int] = []  # who has not played in this round
        self._steps = _LEAST_STEPS  # of the policy that plays
        self._plays = max(fixed, 0)
        counted = spaces.Discrete(policies)
        self.observation_space = _with_part(env.observation_space, POLICY, counted)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        if seed is not None:  # the same episode again, whatever was played before
            self._dice, self._waiting = np.random.default_rng(seed), []
        if self._fixed < 0 and (seed is not None or self._steps >= _LEAST_STEPS):
            self._waiting = self._waiting or self._dice.permutation(self._policies).tolist()
            self._plays, self._steps = self._waiting.pop(), 0
        return _added(self._dict, observation, POLICY, self._plays), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, ended, cut, info = self.env.step(action)
        self._steps += 1
        return _added(self._dict, observation, POLICY, self._plays), reward, ended, cut, info


def _with_part(inner: "spaces.Space[Any]", name: str, part: "spaces.Space[Any]") -> "spaces.Dict":
    """Returns a Dict with a further part; a space that is no Dict becomes its part "obs"."""
    parts = inner.spaces if isinstance(inner, spaces.Dict) else {PLAIN: inner}
    return spaces.Dict({**parts, name: part})


def _added(is_dict: bool, observation: Any, name: str, part: Any) -> dict[str, Any]:
    """Returns the observation of such a space; `is_dict`: it was a Dict before."""
    return {**(observation if is_dict else {PLAIN: observation}), name: part}
