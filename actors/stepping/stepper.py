"""The interface of every way to step, and the arrays that it fills.

    reset() -> ready() -> [the policy acts on whichever groups are ready] -> send(group, actions)
                 ^                                                                     |
                 +---------------------------------------------------------------------+

After ready() a group's rows of `frame` hold the newest observation, and the reward and flags of the
step that led to it. An episode's last observation is delivered as such; the step after it is DEAD:
its action is ignored, it only resets.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from actors.envs import EnvError
from learner.spaces import Spaces


@dataclass(slots=True)
class Frame:
    """One moment of all environments, groups one after another."""

    groups: int
    envs: int  # in a group
    rows: NDArray[np.generic]  # [groups * envs, ...] observations
    reward: NDArray[np.float32]
    flags: NDArray[np.uint8]

    @classmethod
    def empty(cls, spaces: Spaces, *, groups: int, envs: int) -> "Frame":
        leaf = spaces.observation[0]
        return cls(
            groups,
            envs,
            np.zeros((groups * envs, *leaf.shape), leaf.dtype),
            np.zeros(groups * envs, np.float32),
            np.zeros(groups * envs, np.uint8),
        )

    def columns(self, group: int) -> slice:
        return slice(group * self.envs, (group + 1) * self.envs)


class Stepper(Protocol):
    """A way to step."""

    spaces: Spaces
    frame: Frame

    def reset(self) -> None: ...

    def send(self, group: int, actions: NDArray[np.int64]) -> None: ...

    async def ready(self) -> list[int]:
        """Waits for at least one of the groups that were sent; [] at once when none was."""

    def close(self) -> None: ...


def check_shape(given: tuple[int, ...], promised: tuple[int, ...]) -> None:
    """Of an observation, or of a row of them."""
    if given != promised:
        raise ValueError(f"an observation of shape {list(given)}; its space says {list(promised)}")


def check_same_spaces(first: Spaces, other: Spaces, name: str) -> None:
    """Environments of one run are alike."""
    if other != first:
        raise EnvError(f"{name} changes its spaces: first {first}, then {other}")
