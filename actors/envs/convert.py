"""Gymnasium's spaces and observations as plain named arrays."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import gymnasium
import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.actors.config import EnvConfig
from headrace.actors.envs.action_spaces import action_parts
from headrace.actors.envs.observation_spaces import NumberLeaf, parts_of, values_of
from headrace.broker.errors import UserError
from headrace.learner.spaces import Action, Leaf, Spaces

Env = gymnasium.Env[Any, Any]
Rows = Mapping[str, NDArray[np.generic]]

# An unroll's message has 32 buffers. Four are the actions, their log-probabilities, rewards and
# flags, three more come before the first row: memory, action and reward.
MOST_LEAVES = 25


class EnvError(UserError):
    """Says in one line what is wrong with the environment or its config, and what to change."""

    def __init__(self, sentence: str, *, traceback: str = "") -> None:
        super().__init__(sentence)
        self.traceback = traceback  # where in the user's code, if another process told it


@contextmanager
def blamed(failure: str) -> Iterator[None]:
    """Turns every error of the environment into an EnvError: "`failure`: its type and words"."""
    try:
        yield
    except EnvError:
        raise
    except Exception as error:
        raise EnvError(f"{failure}: {type(error).__name__}: {error}") from error


def spaces_of(env: Any, config: EnvConfig) -> Spaces:
    """Returns as data the spaces of an environment, or of each of a vector's or pool's; raises
    EnvError that names an unsupported one."""
    if isinstance(env, gymnasium.Env):
        return as_data(env.observation_space, env.action_space, config)
    return as_data(env.single_observation_space, env.single_action_space, config)


def as_data(
    observation: "gymnasium.Space[Any]", action: "gymnasium.Space[Any]", config: EnvConfig
) -> Spaces:
    """Returns the spaces of one environment as data."""
    taken = _action(action, config)
    settings = tuple(sorted(config.settings))
    leaves = _leaves(observation, taken, config)
    critic = _for_critic(leaves, config)
    binary = tuple(part.leaf.name for part in parts_of(observation) if part.binary)
    return Spaces(leaves, taken, config.metrics, settings, critic, config.population, binary)


def _for_critic(leaves: tuple[Leaf, ...], config: EnvConfig) -> tuple[str, ...]:
    """Returns the leaves that env.critic names: each, or the part it is in."""
    names = [leaf.name for leaf in leaves]
    found: list[str] = []
    for part in config.critic:
        mine = [name for name in names if name == part or name.startswith(f"{part}.")]
        if not mine:
            raise EnvError(
                f"{config.id}: env.critic = {part!r} is no part of the observation, which has"
                f" {names}"
            )
        found += mine
    if any(leaf.mask and leaf.name in found for leaf in leaves):
        raise EnvError(f"{config.id}: env.critic names the mask, which whoever acts must see")
    if found and all(leaf.mask or leaf.name in found for leaf in leaves):
        raise EnvError(f"{config.id}: env.critic leaves nothing for the policy to see")
    return tuple(found)


def _leaves(space: "gymnasium.Space[Any]", action: Action, config: EnvConfig) -> tuple[Leaf, ...]:
    try:
        leaves = tuple(part.leaf for part in parts_of(space))
    except TypeError as error:
        raise EnvError(f"{config.id}: observation {error}") from error
    if not 1 <= len(leaves) <= MOST_LEAVES:
        raise EnvError(
            f"{config.id}: the observation has {len(leaves)} parts, 1 to {MOST_LEAVES} can travel;"
            " put some together"
        )
    name, times = Counter(leaf.name for leaf in leaves).most_common(1)[0]
    if times > 1:
        raise EnvError(f"{config.id}: {times} parts of the observation are called {name}; rename")
    if config.mask:
        leaves = _masked(leaves, action, config)
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


def _masked(leaves: tuple[Leaf, ...], action: Action, config: EnvConfig) -> tuple[Leaf, ...]:
    """Marks the leaf that env.mask names as the mask."""
    name, count = config.mask, sum(action.categories)
    if not count:
        raise EnvError(f"{config.id}: the action has no choices to mask; leave env.mask out")
    found = [leaf for leaf in leaves if leaf.name == name]
    if not found:
        # make_env has put an entry of info there, if it was asked.
        raise EnvError(
            f"{config.id}: env.mask = {name!r} is no part of the observation, which has"
            f" {[leaf.name for leaf in leaves]}; an entry of info serves single environments"
            ' of one agent only: set actor.stepping = "inline", "threads" or "processes",'
            " or put it into the observation"
        )
    leaf = found[0]
    if leaf.shape != (count,) or leaf.categories or np.dtype(leaf.dtype).kind not in "iu":
        raise EnvError(
            f"{config.id}: env.mask = {name!r} is {np.dtype(leaf.dtype).name}{list(leaf.shape)};"
            f" the action has {count} values to choose from, so make it MultiBinary({count})"
        )
    if len(leaves) == 1:
        raise EnvError(f"{config.id}: the observation is nothing but the mask; add what to see")
    return tuple(
        msgspec.structs.replace(leaf, mask=True) if leaf.name == name else leaf for leaf in leaves
    )


def _action(space: "gymnasium.Space[Any]", config: EnvConfig) -> Action:
    try:
        return Action(tuple(action_parts(space)), squash=config.bounds == "tanh")
    except TypeError as error:
        raise EnvError(f"{config.id}: action: {error}") from error


class Writer:
    """Puts observations of one space into the rows of a frame."""

    def __init__(self, space: "gymnasium.Space[Any]", spaces: Spaces) -> None:
        self._space = space
        self._parts = tuple(parts_of(space))
        made = [part.leaf for part in self._parts]
        wanted = [msgspec.structs.replace(leaf, stack=1, mask=False) for leaf in spaces.observation]
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
        self._plain = isinstance(only, NumberLeaf) and not nested
        self._name, self._shape, self._dtype = only.leaf.name, only.shape, only.dtype
        self._mask = next((leaf.name for leaf in spaces.observation if leaf.mask), "")
        self._choices = np.cumsum((0, *spaces.action.categories), dtype=np.int64)[:-1]

    def check(self, observation: Any) -> None:
        """Raises ValueError unless an episode's first observation is inside the space, in shape,
        dtype and bounds."""
        for part, value in zip(self._parts, values_of(self._space, observation), strict=True):
            part.check(value)

    def write(self, rows: Rows, index: int, observation: Any, *, last: bool = False) -> None:
        """Writes one environment's observation; raises ValueError on a wrong shape, dtype or
        category, and on a mask that allows nothing. `last`: nothing is chosen after it."""
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
        if self._mask and not last:
            self._check_masks(rows[self._mask][index][None])

    def write_batch(
        self,
        rows: Rows,
        columns: slice | NDArray[np.integer[Any]],
        observations: Any,
        *,
        last: NDArray[np.bool_] | None = None,
    ) -> None:
        """Writes a vector environment's observations; nothing is chosen after the `last`."""
        for part, value in zip(self._parts, values_of(self._space, observations), strict=True):
            row = rows[part.leaf.name]
            width = (
                len(range(*columns.indices(len(row))))
                if isinstance(columns, slice)
                else len(columns)
            )
            row[columns] = part.array(value, (width,))
        if self._mask:
            masks = rows[self._mask][columns]
            self._check_masks(masks if last is None else masks[~last])

    def _check_masks(self, masks: NDArray[np.generic]) -> None:
        allowed = np.add.reduceat(masks != 0, self._choices, axis=1, dtype=np.int64)
        if not allowed.all():
            choice = np.argwhere(allowed == 0)[0][1]
            raise ValueError(f"{self._mask}: the mask allows nothing for choice {choice}")


def mask_of(env: Any, observation: Any, spaces: Spaces) -> NDArray[Any] | None:
    """Returns the mask in the observation of a single or vector environment, [N, values]; None =
    there is no mask."""
    name = next((leaf.name for leaf in spaces.observation if leaf.mask), None)
    if name is None:
        return None
    single = isinstance(env, gymnasium.Env)
    space = env.observation_space if single else env.single_observation_space
    for part, value in zip(parts_of(space), values_of(space, observation), strict=True):
        if part.leaf.name == name:
            return np.asarray(value).reshape(-1, sum(spaces.action.categories))
    return None
