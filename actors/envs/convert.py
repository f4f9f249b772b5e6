"""Gymnasium's spaces and observations as plain named arrays."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Protocol

import gymnasium
import msgspec
import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from actors.config import EnvConfig
from actors.envs.leaves import Numbers, parts_of, values_of
from learner.spaces import Discrete, Leaf, Spaces

Env = gymnasium.Env[Any, Any]
Rows = Mapping[str, NDArray[np.generic]]

# An unroll's message has 32 buffers; four are the actions, their logits, rewards and flags.
MOST_LEAVES = 28


class EnvError(Exception):
    """The environment is at fault, or what was said about it; one line that names what to
    change."""

    def __init__(self, sentence: str) -> None:
        super().__init__(" ".join(sentence.split()))


class Many(Protocol):
    """Anything that steps many environments at once."""

    single_observation_space: Any
    single_action_space: Any


def spaces_of(env: Env | VectorEnv[Any, Any, Any] | Many, config: EnvConfig) -> Spaces:
    """Its spaces as data; unsupported ones are named."""
    if isinstance(env, gymnasium.Env) and not isinstance(env, VectorEnv):
        return as_data(env.observation_space, env.action_space, config)
    return as_data(env.single_observation_space, env.single_action_space, config)


def as_data(
    observation: "gymnasium.Space[Any]", action: "gymnasium.Space[Any]", config: EnvConfig
) -> Spaces:
    """The spaces of one environment."""
    return Spaces(_leaves(observation, config), _action(action, config))


def _leaves(space: "gymnasium.Space[Any]", config: EnvConfig) -> tuple[Leaf, ...]:
    try:
        leaves = tuple(part.leaf for part in parts_of(space))
    except TypeError as error:
        raise EnvError(
            f"{config.id}: observation {error}, which is not supported; Box, Discrete,"
            " MultiBinary, MultiDiscrete, Dict and Tuple are"
        ) from error
    if not 1 <= len(leaves) <= MOST_LEAVES:
        raise EnvError(
            f"{config.id}: the observation has {len(leaves)} parts, 1 to {MOST_LEAVES} can travel;"
            " put some together"
        )
    name, times = Counter(leaf.name for leaf in leaves).most_common(1)[0]
    if times > 1:
        raise EnvError(f"{config.id}: {times} parts of the observation are called {name}; rename")
    if config.stack == 1:
        return leaves
    if not any(leaf.image for leaf in leaves):
        raise EnvError(
            f"{config.id}: no part of the observation is an image (uint8 with height and width);"
            " set env.stack = 1"
        )
    return tuple(
        msgspec.structs.replace(leaf, stack=config.stack) if leaf.image else leaf for leaf in leaves
    )


def _action(space: "gymnasium.Space[Any]", config: EnvConfig) -> Discrete:
    if not isinstance(space, gymnasium.spaces.Discrete):
        raise EnvError(f"{config.id}: action {space} is not supported yet; only Discrete is")
    if int(space.start) != 0:
        raise EnvError(f"{config.id}: actions must count from 0, these start at {space.start}")
    return Discrete(int(space.n))


class Writer:
    """Puts observations of one space into the rows of a frame."""

    def __init__(self, space: "gymnasium.Space[Any]", spaces: Spaces) -> None:
        self._space = space
        self._parts = tuple(parts_of(space))
        made = [msgspec.structs.replace(part.leaf, stack=1) for part in self._parts]
        wanted = [msgspec.structs.replace(leaf, stack=1) for leaf in spaces.observation]
        if made != wanted:
            raise EnvError(
                f"this environment's observation is {space}, the run began with {spaces};"
                " it must be the same every time one is made"
            )
        # The only part of a space without parts. Most are numbers, which write() tests without a
        # call: it runs at every step.
        only = self._parts[0]
        nested = isinstance(space, gymnasium.spaces.Dict | gymnasium.spaces.Tuple)
        self._only = None if nested else only
        self._plain = isinstance(only, Numbers) and not nested
        self._name, self._shape, self._dtype = only.leaf.name, only.shape, only.dtype

    def check(self, observation: Any) -> None:
        """Of every episode's first observation: ValueError unless it is inside the space, in shape,
        dtype and bounds."""
        for part, value in zip(self._parts, values_of(self._space, observation), strict=True):
            part.check(value)

    def write(self, rows: Rows, index: int, observation: Any) -> None:
        """One environment's observation; ValueError on a wrong shape, dtype or category."""
        if (
            self._plain
            and type(observation) is np.ndarray
            and observation.dtype is self._dtype
            and observation.shape == self._shape
        ):
            rows[self._name][index] = observation
            return
        if self._only:
            rows[self._name][index] = self._only.array(observation)
            return
        for part, value in zip(self._parts, values_of(self._space, observation), strict=True):
            rows[part.leaf.name][index] = part.array(value)

    def write_batch(
        self, rows: Rows, columns: slice | NDArray[np.integer[Any]], observations: Any
    ) -> None:
        """A vector environment's."""
        for part, value in zip(self._parts, values_of(self._space, observations), strict=True):
            row = rows[part.leaf.name]
            width = (
                len(range(*columns.indices(len(row))))
                if isinstance(columns, slice)
                else len(columns)
            )
            row[columns] = part.array(value, (width,))
