"""Gymnasium's own vector environment, as a yardstick."""

import time

import numpy as np
from gymnasium.vector import AsyncVectorEnv

from actors.config import EnvConfig
from actors.envs.make import make_env


def rate(config: EnvConfig, envs: int, *, seconds: float) -> float:
    """Agent steps a second of AsyncVectorEnv with random actions; the first fifth is warm-up."""
    vector = AsyncVectorEnv([lambda: make_env(config)] * envs)
    try:
        vector.reset(seed=1)
        rng = np.random.default_rng(0)
        actions = vector.single_action_space.n  # type: ignore[attr-defined]
        count, began, counted = 0, time.perf_counter(), 0.0
        while True:
            vector.step(rng.integers(0, actions, envs))
            passed = time.perf_counter() - began
            if not counted and passed > seconds / 5:
                counted = passed
            elif counted:
                count += envs
            if passed >= seconds:
                return count / (passed - counted)
    finally:
        vector.close(terminate=True)
