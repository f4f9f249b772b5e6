"""Catch: a ball falls, a paddle must be under it. The smallest task that is seen as an image."""

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

_CELLS = 12  # rows and columns
_PIXELS = 7  # width and height of a cell: 84 x 84 in all
_REACH = 1  # cells that the paddle covers on each side of its middle


class Catch(gymnasium.Env[NDArray[np.uint8], int]):
    """Lets a paddle move left, stay or move right for 11 steps; pays 1 for a ball that was caught,
    -1 for one that was not."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - as gymnasium declares it

    def __init__(self) -> None:
        size = _CELLS * _PIXELS
        self.observation_space = gymnasium.spaces.Box(0, 255, (size, size), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(3)  # type: ignore[assignment]
        self._row = self._ball = self._paddle = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._row = 0
        self._ball = int(self.np_random.integers(_CELLS))
        self._paddle = int(self.np_random.integers(_REACH, _CELLS - _REACH))
        return self._image(), {}

    def step(self, action: int) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        self._row += 1
        moved = self._paddle + int(action) - 1
        self._paddle = min(max(moved, _REACH), _CELLS - 1 - _REACH)
        over = self._row == _CELLS - 1
        caught = abs(self._ball - self._paddle) <= _REACH
        reward = (1.0 if caught else -1.0) if over else 0.0
        return self._image(), reward, over, False, {}

    def _image(self) -> NDArray[np.uint8]:
        image = np.zeros((_CELLS, _PIXELS, _CELLS, _PIXELS), np.uint8)
        image[self._row, :, self._ball] = 255
        image[-1, :, self._paddle - _REACH : self._paddle + _REACH + 1] = 128
        return image.reshape(_CELLS * _PIXELS, _CELLS * _PIXELS)
