"""Catch: the picture says where everything is, and who follows the ball wins."""

from typing import Any

import numpy as np

from headrace.actors.config import EnvConfig
from headrace.actors.envs.make import make_env, probe

CATCH = EnvConfig("headrace/Catch-v0")


def places(image: Any) -> tuple[int, float]:
    """Columns of the ball and of the paddle's middle, from the picture alone."""
    cells = image[::7, ::7]
    ball = int(np.flatnonzero((cells == 255).any(axis=0))[0])
    return ball, float(np.flatnonzero(cells[-1] == 128).mean())


def play(seed: int, *, away: bool) -> list[float]:
    """Rewards of an episode in which the paddle follows the ball, or runs from it."""
    env = make_env(CATCH)
    image, _ = env.reset(seed=seed)
    rewards, over = [], False
    while not over:
        ball, paddle = places(image)
        way = int(np.sign(ball - paddle))
        if away:
            way = -way or 1
        image, reward, over, _, _ = env.step(1 + way)
        rewards.append(float(reward))
    env.close()
    return rewards


def test_who_follows_the_ball_catches_it_and_who_runs_does_not() -> None:
    for seed in range(20):
        assert play(seed, away=False) == [0.0] * 10 + [1.0]
    missed = [play(seed, away=True) == [0.0] * 10 + [-1.0] for seed in range(20)]
    assert sum(missed) >= 15  # now and then a wall is in the way


def test_it_is_an_image() -> None:
    (leaf,) = probe(CATCH).observation
    assert leaf.image and leaf.shape == (84, 84)
