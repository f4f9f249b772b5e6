"""The speed of Gymnasium's own vector environment, to compare with."""

import time

import numpy as np
from gymnasium.vector import AsyncVectorEnv

from headrace.actors.action_converter import ActionConverter, random_rows
from headrace.actors.config import EnvConfig
from headrace.actors.envs.convert import mask_of, spaces_of
from headrace.actors.envs.make import make_env


def steps_per_second(config: EnvConfig, envs: int, *, seconds: float) -> float:
    """Returns agent steps a second of AsyncVectorEnv by random actions, after a fifth of
    warm-up."""
    vector = AsyncVectorEnv([lambda: make_env(config)] * envs)
    try:
        newest = vector.reset(seed=1)[0]
        rng = np.random.default_rng(0)
        spaces = spaces_of(vector, config)
        actions = ActionConverter(spaces.action)
        count, began, counted = 0, time.perf_counter(), 0.0
        while True:
            mask = mask_of(vector, newest, spaces)
            newest = vector.step(actions.many(random_rows(spaces.action, rng, envs, mask)))[0]
            passed = time.perf_counter() - began
            if not counted and passed > seconds / 5:
                counted = passed
            elif counted:
                count += envs
            if passed >= seconds:
                return count / (passed - counted)
    finally:
        vector.close(terminate=True)
