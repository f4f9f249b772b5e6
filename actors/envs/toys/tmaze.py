"""A T-maze: a cue at its entrance says which way to turn at its end.

The smallest task that asks for a memory of so many steps.
"""

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

_FORWARD, _UP = 0, 1  # and 2 = down
_SPARE = 5  # steps that may be lost, beside one for each of the corridor


class TMaze(gymnasium.Env[NDArray[np.float32], int]):
    """Shows the cue once, in the first observation; pays 1 for the turn it says, 0 for the other.

    The turn is `length` steps after the cue. In the corridor a turn meets a wall: it moves nothing,
    and an episode of nothing else costs 1. The best return is 1.0, without a memory it is 0.5.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - as gymnasium declares it

    def __init__(self, length: int = 10) -> None:
        self.observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(3)  # type: ignore[assignment]
        self._length = length
        self._longest = 2 * length + _SPARE
        self._at = self._steps = self._cue = 0  # cue: 1 = up, -1 = down

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._at = self._steps = 0
        self._cue = 2 * int(self.np_random.integers(2)) - 1
        return np.array([self._cue, 0], np.float32), {}

    def step(self, action: int) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        self._steps += 1
        turned = int(action) != _FORWARD
        over = turned and self._at == self._length
        if over:
            reward = float((self._cue > 0) == (int(action) == _UP))
        else:
            reward = -1 / self._longest if turned else 0.0
            self._at = min(self._at + (not turned), self._length)
        seen = np.array([0, self._at == self._length], np.float32)
        return seen, reward, over, not over and self._steps == self._longest, {}
