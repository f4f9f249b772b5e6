"""EnvPool: environments in C++ threads; whichever are done first come back first.

env.id is "envpool:" and the task, as in envpool:Breakout-v5. env.kwargs are EnvPool's own for that
task, and two that say how it runs: batch_size, how many come back at once (half of them unless
told), and num_threads (EnvPool's choice unless told: as many as come back, at most one a core).
"""

import importlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.actors.config import EnvConfig
from headrace.actors.envs.convert import EnvError

_PREFIX = "envpool:"
_OURS = {
    "num_envs": "unroll.envs and actor.groups decide it",
    "seed": "the run's seed decides it",
    "env_seed": "the run's seed decides it",
    "env_type": "it is always gymnasium",
    "stack_num": "set env.stack",
}


class EnvPoolAdapter:
    """Wraps what we use of EnvPool: async_reset once, then recv and send in turn.

    One that ended is reset by its next action; that step has info["elapsed_step"] 0.
    """

    def __init__(self, made: Any, observation: Any, action: Any) -> None:
        self._made = made
        self._channel = observation is not made.observation_space
        self.single_observation_space = observation
        self.single_action_space = action

    def async_reset(self) -> None:
        self._made.async_reset()

    def recv(
        self,
    ) -> tuple[
        Any, NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_], dict[str, NDArray[Any]]
    ]:
        """Returns observations, rewards, terminated, truncated and info of a batch of environments,
        which info["env_id"] names; blocks until that many are done."""
        observations, *rest = self._made.recv()
        if self._channel:
            observations = observations[:, 0]
        return observations, *rest

    def send(self, actions: NDArray[Any], env_id: NDArray[np.int32]) -> None:
        self._made.send(actions, env_id)

    def close(self) -> None:
        self._made.close()


def is_envpool(config: EnvConfig) -> bool:
    return config.id.startswith(_PREFIX)


def make(config: EnvConfig, envs: int, batch: int, seed: int | None) -> EnvPoolAdapter:
    keywords = _keywords(config, envs, batch)
    # One for each: from a single seed EnvPool would count up, into the next pool's.
    seeds = (np.random.SeedSequence(seed).generate_state(envs) >> 1).tolist()
    made = importlib.import_module("envpool").make(
        _task(config), env_type="gymnasium", seed=seeds, **keywords
    )
    return EnvPoolAdapter(made, _one_frame(made.observation_space, keywords), made.action_space)


def spaces(config: EnvConfig) -> tuple[Any, Any]:
    """Returns observation and action space of one environment, without making any."""
    keywords = _keywords(config, 1, 1)
    spec = importlib.import_module("envpool").make_spec(_task(config), **keywords)
    return _one_frame(spec.gymnasium_observation_space, keywords), spec.gymnasium_action_space


def _task(config: EnvConfig) -> str:
    return config.id.removeprefix(_PREFIX)


def _keywords(config: EnvConfig, envs: int, batch: int) -> dict[str, Any]:
    for name, why in _OURS.items():
        if name in config.kwargs:
            raise EnvError(f"env.kwargs: leave {name} out; {why}")
    keywords = {**config.kwargs, "num_envs": envs, "batch_size": batch}
    envpool = importlib.import_module("envpool")
    if _task(config) not in envpool.list_all_envs():
        raise EnvError(
            f"env.id = {config.id!r}: EnvPool has no such task; envpool.list_all_envs() names all"
        )
    spec = envpool.make_spec(_task(config))
    if "stack_num" in spec.config._fields:
        # Frames travel once; the receiver puts them side by side.
        keywords["stack_num"] = 1
    return keywords


def _one_frame(space: Any, keywords: dict[str, Any]) -> Any:
    """Removes the axis for a stack of one grey frame, as elsewhere."""
    if keywords.get("stack_num") != 1 or len(space.shape) != 3 or space.shape[0] != 1:
        return space
    return type(space)(space.low[0], space.high[0], dtype=space.dtype)
