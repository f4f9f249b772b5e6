"""A trained policy for a loop outside headrace: one observation in, one action out.

It needs no environment. It sees what samplers see, through the same frame, stacks and memory, one
environment wide.
"""

import copy
import math
import uuid
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.actors.acting.frame_stacks import FrameStacks
from headrace.actors.action_converter import ActionConverter
from headrace.actors.stepping.stepper import Frame
from headrace.learner.spaces import Leaf, Spaces

_PLAIN = "obs"  # the leaf's name where an observation has no parts
_ONLY = slice(0, 1)
_LARGEST_REWARD = float(np.finfo(np.float32).max)


class PolicyLike(Protocol):
    """Declares what is needed of an acting.policy.Policy; this module needs no torch."""

    version: int

    @property
    def memory(self) -> int: ...

    @property
    def previous(self) -> bool: ...

    def act(
        self,
        obs: dict[str, NDArray[np.generic]],
        memory: NDArray[np.float32] | None = None,
        *,
        greedy: bool = False,
    ) -> tuple[NDArray[Any], NDArray[np.float32], NDArray[np.float32] | None]: ...


class EpisodeState:
    """Carries what a policy needs from step to step: memory, stacked frames, the step before. It
    never changes, so an episode can be continued from one state twice."""

    def __init__(self, spaces: Spaces, owner: int, *, memory: int, previous: bool) -> None:
        self.owner = owner  # the identity of the policy that made it
        self.frame = Frame.empty(spaces, groups=1, envs=1)
        self.stacks = FrameStacks(spaces, self.frame, memory=memory, previous=previous)


class TrainedPolicy:
    """Acts as the run's samplers would, or greedily.

    policy = headrace.load_policy("headrace-runs/cartpole")
    action, state = policy.act(obs)                 # an episode begins
    action, state = policy.act(obs, state)
    """

    def __init__(self, policy: PolicyLike, spaces: Spaces) -> None:
        self.spaces = spaces  # what it takes and gives
        self.version = policy.version  # of the weights
        self._policy = policy
        self._actions = ActionConverter(spaces.action)
        self._leaves = {leaf.name: leaf for leaf in spaces.observation}
        self._mask = next((leaf for leaf in spaces.observation if leaf.mask), None)
        # Another policy's numbers would mean something else here, whatever their shapes.
        self._identity = uuid.uuid4().int

    def __repr__(self) -> str:
        return f"TrainedPolicy(version {self.version}: {self.spaces})"

    def act(
        self,
        obs: Any,
        state: EpisodeState | None = None,
        mask: Any = None,
        greedy: bool = True,
        *,
        reward: float | None = None,
    ) -> tuple[Any, EpisodeState]:
        """Returns the action as the environment takes it, and the state for the next step.

        obs: one observation as the environment gives it.
        state: from the step before; None = the episode begins. mask: which choices are allowed,
        where the run has env.mask and the observation does not hold it. greedy: the likeliest
        action, else a drawn one. reward: of the step before, where the run has model.previous.

        ValueError when any of them is not what the policy was trained on.
        """
        rows = self._rows(obs, mask)
        gained = None if reward is None else _reward(reward)
        episode = self._next(state)
        for name, row in rows.items():
            episode.frame.obs[name][0] = row
        if self._policy.previous and state is not None:
            if gained is None:
                raise ValueError(
                    "this policy sees the reward of the step before: act(obs, state, reward=...)"
                )
            episode.frame.reward[0] = gained
        episode.stacks.push(0)
        chosen, _, memory = self._policy.act(
            episode.stacks.view(_ONLY), episode.stacks.memory(_ONLY), greedy=greedy
        )
        episode.stacks.acted(_ONLY, chosen, memory)
        return self._actions.one(chosen[0]), episode

    def _next(self, state: EpisodeState | None) -> EpisodeState:
        if state is None:
            policy = self._policy
            return EpisodeState(
                self.spaces, self._identity, memory=policy.memory, previous=policy.previous
            )
        if not isinstance(state, EpisodeState) or state.owner != self._identity:
            raise ValueError(
                "this state is not of this policy; give it what act() returned, or None"
            )
        return copy.deepcopy(state)

    def _rows(self, obs: Any, mask: Any) -> dict[str, NDArray[np.generic]]:
        values = dict(self._values(obs, ""))
        if mask is not None:
            if self._mask is None:
                raise ValueError("a mask was given, and this policy was trained without env.mask")
            values[self._mask.name] = mask
        for leaf in self._leaves.values():
            if leaf.name in self.spaces.critic:  # it learned with it, and acts without
                values.setdefault(leaf.name, np.zeros(leaf.shape, leaf.dtype))
            if leaf.name not in values:
                hint = ", give it as act(obs, state, mask=...)" if leaf.mask else ""
                raise ValueError(
                    f"the observation has no {leaf.name}{hint}; this policy was trained on"
                    f" {self.spaces}"
                )
        rows = {name: _row(self._leaves[name], value) for name, value in values.items()}
        if self._mask is not None:
            self._some_choice(rows[self._mask.name])
        return rows

    def _some_choice(self, mask: NDArray[np.generic]) -> None:
        ends = np.cumsum(self.spaces.action.categories).tolist()
        for at, part in enumerate(np.split(mask, ends[:-1])):
            if not part.any():
                raise ValueError(f"the mask allows no value of choice {at} of {len(ends)}")

    def _values(self, value: Any, name: str) -> Iterator[tuple[str, Any]]:
        """Yields (leaf name, value); nested parts are named by their path."""
        if isinstance(value, dict) and (value or not name):
            parts = value.items()
        elif name in self._leaves or (not name and _PLAIN in self._leaves):
            yield name or _PLAIN, value
            return
        elif isinstance(value, tuple | list) and value:
            parts = dict(enumerate(value)).items()
        else:
            raise ValueError(
                f"the observation has {name or 'no parts'}; this policy was trained on"
                f" {self.spaces}"
            )
        for key, inner in parts:
            yield from self._values(inner, f"{name}.{key}" if name else str(key))


def _row(leaf: Leaf, value: Any) -> NDArray[np.generic]:
    try:
        array = np.asarray(value)
    except ValueError:  # lists of different lengths
        array = np.asarray(value, object)
    dtype = np.dtype(leaf.dtype)
    whole = dtype.kind in "iu"
    if array.shape != leaf.shape or array.dtype.kind not in ("biu" if whole else "biuf"):
        raise ValueError(
            f"{leaf.name}: {array.dtype.name}{[*array.shape]} was given, this policy was trained on"
            f" {dtype.name}{[*leaf.shape]}"
        )
    with np.errstate(over="ignore"):  # it becomes infinite, and is refused
        row: NDArray[Any] = array.astype(dtype)
    if not whole:
        _refuse(leaf, array, ~np.isfinite(row), f"which is not a finite number of {dtype.name}")
        return row
    _refuse(leaf, array, row != array, f"it must be {dtype.name}")
    if leaf.mask:
        _refuse(leaf, array, (row != 0) & (row != 1), "a mask holds 0 and 1")
    if leaf.categories:
        counts = np.array(leaf.categories).reshape(leaf.shape)
        start = np.array(leaf.start or (0,) * len(leaf.categories)).reshape(leaf.shape)
        row = row - start
        allowed = f"it must be {start.tolist()} to below {(start + counts).tolist()}"
        _refuse(leaf, array, (row < 0) | (row >= counts), allowed)
    return row


def _refuse(leaf: Leaf, array: NDArray[Any], wrong: NDArray[np.bool_], why: str) -> None:
    """Raises ValueError with the first element that is wrong, if there is one."""
    if np.any(wrong):
        at = tuple(np.argwhere(wrong)[0].tolist())
        place = f" at {list(at)}" if at else ""
        raise ValueError(f"{leaf.name}: {array[at]}{place} was given, {why}")


def _reward(reward: Any) -> float:
    """Returns the reward as float32 holds it. The network sees it cut at 1, so how large it is
    beyond float32 does not matter."""
    try:
        single = np.ndim(reward) == 0 and not isinstance(reward, str | bytes)
        value = float(reward) if single else math.nan
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not math.isfinite(value):
        given = repr(reward) if isinstance(reward, float) else f"a {type(reward).__name__}"
        raise ValueError(f"reward: {given} was given, it must be one finite number")
    return max(-_LARGEST_REWARD, min(value, _LARGEST_REWARD))
