"""The interface of all steppers, and the arrays that they fill.

    start -> ready() -> [the policy acts on whichever groups are ready] -> send(group, actions)
                ^                                                                    |
                +--------------------------------------------------------------------+

Once ready() has named a group, its rows of `frame` hold the newest observation, and the reward and
flags of the step that led to it; they stay until the group is sent again. An episode's last
observation is delivered as such; the step after it is DEAD: its action is ignored, it only resets.
An environment that had to be restarted shows the same way: a DEAD step without an end before it.

A stream is what the broker sees: one unroll after another. `parts` groups fill each unroll of a
stream side by side, each at its own speed.

An environment whose agents take turns has a group for each: sending one makes that ready whose turn
is next.
"""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headrace.actors.action_converter import Rows
from headrace.actors.config import EnvConfig
from headrace.actors.stepping.frame_layout import places
from headrace.learner.spaces import Spaces

# Rewards, flags and metrics.
Answer: TypeAlias = tuple[NDArray[np.float32], NDArray[np.uint8], NDArray[np.float64] | None]


@dataclass(frozen=True, slots=True)
class EnvsSpec:
    """Says which environments a stepper makes, and how many."""

    config: EnvConfig
    spaces: Spaces
    groups: int
    envs: int  # in a group
    seed: int  # of column 0; every other column counts on from it
    vector: bool = False  # each group is one of the environment's own vector class
    sampler: str = "probe"  # the name of the process that plays
    agents: int = 0  # of each environment; 0 = it is one of gymnasium's
    turns: bool = False  # they take turns: each is a group; otherwise a group is an environment

    @property
    def together(self) -> int:
        """Returns how many groups are one environment's, and stepped as one."""
        return self.agents if self.turns else 1


@dataclass(slots=True)
class Frame:
    """Holds one moment of all environments, groups one after another."""

    groups: int
    envs: int  # in a group
    obs: dict[str, NDArray[np.generic]]  # by leaf: [groups * envs, *leaf.shape]
    reward: NDArray[np.float32]
    flags: NDArray[np.uint8]
    action: Rows  # what was sent: [groups * envs, *action.shape] of action.dtype
    spent: NDArray[np.float64]  # by group: seconds inside it since the start
    begun: NDArray[np.float64]  # by group, the first of an environment of several: its episodes
    settings: NDArray[np.float64]  # of the environments that begin an episode, by their names
    parts: int = 1  # groups of a stream
    agents: int = 0  # of each environment; 0 = it is one of gymnasium's
    turns: int = 1  # groups of an environment, of which one is ready at a time
    # [groups * envs, metrics]: NaN = not in info, infinite = no number. None = none are asked for.
    metrics: NDArray[np.float64] | None = None

    @classmethod
    def empty(cls, spaces: Spaces, *, groups: int, envs: int) -> "Frame":
        size = cls.nbytes(spaces, groups=groups, envs=envs)
        return cls.over(memoryview(bytearray(size)), spaces, groups=groups, envs=envs)

    @classmethod
    def over(cls, memory: memoryview, spaces: Spaces, *, groups: int, envs: int) -> "Frame":
        """Lays the arrays over `memory`, which may be shared between processes."""
        views = []
        for offset, dtype, shape in places(spaces, groups, envs)[0]:
            count = int(np.prod(shape, dtype=np.int64))
            flat: NDArray[np.generic] = np.frombuffer(memory, dtype, count, offset)
            views.append(flat.reshape(shape))
        spent, begun, settings, action, reward, flags, *rows = views
        names = [leaf.name for leaf in spaces.observation]
        return cls(
            groups,
            envs,
            dict(zip(names, rows[: len(names)], strict=True)),
            reward.view(np.float32),
            flags.view(np.uint8),
            action,
            spent.view(np.float64),
            begun.view(np.float64),
            settings.view(np.float64),
            metrics=rows[-1].view(np.float64) if spaces.metrics else None,
        )

    @staticmethod
    def nbytes(spaces: Spaces, *, groups: int, envs: int) -> int:
        return places(spaces, groups, envs)[1]

    def answer(self, rows: "slice | NDArray[np.int64]") -> Answer:
        """Returns a copy of what their newest step gave beside the observations."""
        metrics = None if self.metrics is None else self.metrics[rows].copy()
        return self.reward[rows].copy(), self.flags[rows].copy(), metrics

    def columns(self, group: int) -> slice:
        return slice(group * self.envs, (group + 1) * self.envs)

    def groups_of(self, stream: int) -> range:
        return range(stream * self.parts, (stream + 1) * self.parts)

    def columns_of(self, stream: int) -> slice:
        width = self.parts * self.envs
        return slice(stream * width, (stream + 1) * width)


class EnvFailure(NamedTuple):
    """Describes one environment that had to be restarted."""

    env: int  # its column in the frame
    where: str  # make, reset, step, time-out, death
    seed: int  # it was last seeded with
    steps: int  # it had taken since it was made
    text: str  # the traceback, or what is known instead


class ThreadReply(NamedTuple):
    """Gives environments with threads of their own their actions without the event loop.

    A small network costs less than the way to the loop and back, so the thread that has finished a
    step asks for the next action itself.
    """

    lock: threading.Lock  # held by the thread that runs the network
    actions: Callable[[int], Rows | None]  # of a group; None = ask the event loop


class Stepper(Protocol):
    """Steps environments in one of several ways. All calls, on the event loop, return at once."""

    spaces: Spaces
    frame: Frame
    beside: int  # how many are stepped at a time beside this thread; 0 = it steps them itself

    def start(self, news: asyncio.Event, reply: ThreadReply | None = None) -> None:
        """Begins every environment, each with a seed of its own. From now on `news` is set whenever
        ready() or failures() has something new. A stepper that has no use for `reply` ignores
        it."""

    def send(self, group: int, actions: Rows) -> None:
        """Steps once a group that was ready."""

    def ready(self) -> list[int]:
        """Returns the groups whose observations came since the last call."""

    def failures(self) -> list[EnvFailure]:
        """Returns the restarts since the last call."""

    def close(self) -> None: ...
