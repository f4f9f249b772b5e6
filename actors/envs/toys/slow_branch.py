"""A fork in the road: the branch that pays more is slow to walk and pays only who has learnt it."""

import time
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

STEPS = 8  # of each branch
QUICK_PAYS = 0.6


class SlowBranch(gymnasium.Env[NDArray[np.float32], int]):
    """Asks at the first step which branch to walk. The quick one (action 0) pays 0.6 at its end.
    Each step of the slow one takes `slow_s`, shows one of so many cues, and pays 1/8 for the action
    that is the cue's number.

    The best return is 1.0; whoever has not learnt the cues gets 1 / cues on the slow branch, less
    than on the quick one.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - as gymnasium declares it

    def __init__(self, cues: int = 4, quick_s: float = 0.0005, slow_s: float = 0.010) -> None:
        # One of: at the fork, on the quick branch, on the slow one with cue 0, with cue 1, ...
        self.observation_space = gymnasium.spaces.Box(0, 1, (2 + cues,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(cues)  # type: ignore[assignment]
        self._cues = cues
        self._seconds = (quick_s, slow_s)
        self._place = self._walked = 0  # place: the index of the 1 in the observation

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._place = self._walked = 0
        return self._seen(), {}

    def step(self, action: int) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        at_fork, slow = self._place == 0, self._place > 1
        time.sleep(self._seconds[slow])
        self._walked += not at_fork
        over = self._walked == STEPS
        reward = (int(action) == self._place - 2) / STEPS if slow else QUICK_PAYS * over
        if slow or (at_fork and action):
            self._place = 2 + int(self.np_random.integers(self._cues))
        else:
            self._place = 1
        return self._seen(), reward, over, False, {}

    def _seen(self) -> NDArray[np.float32]:
        seen = np.zeros(2 + self._cues, np.float32)
        seen[self._place] = 1.0
        return seen
