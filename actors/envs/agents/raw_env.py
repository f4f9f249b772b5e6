"""Environments whose observation is a piece of memory, and whose action a row of numbers."""

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray


class RawEnv(gymnasium.Env[NDArray[np.uint8], NDArray[np.float32]]):
    """Has the spaces of so many bytes and numbers, whatever they mean."""

    def __init__(self, nbytes: int, numbers: int) -> None:
        self.observation_space = Box(0, 255, (nbytes,), np.uint8)
        self.action_space = Box(-np.inf, np.inf, (numbers,), np.float32)
