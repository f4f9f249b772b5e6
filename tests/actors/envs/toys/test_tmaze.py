"""The T-maze: who remembers the cue turns right, who does not is right half of the time."""

from collections.abc import Callable

import numpy as np
import pytest

from headrace.actors.config import EnvConfig
from headrace.actors.envs.make import make_env, probe
from headrace.actors.envs.toys.tmaze import TMaze

FORWARD, UP, DOWN = range(3)


def play(env: TMaze, seed: int, turn: Callable[[float], int]) -> tuple[list[float], bool]:
    """Walks the corridor and turns there; returns the rewards, and whether the episode was cut."""
    seen, _ = env.reset(seed=seed)
    cue, rewards = float(seen[0]), []
    while True:
        seen, reward, ended, cut, _ = env.step(turn(cue) if seen[1] else FORWARD)
        assert env.observation_space.contains(seen)
        assert seen[0] == 0  # the cue is never shown again
        rewards.append(reward)
        if ended or cut:
            return rewards, cut


@pytest.mark.parametrize("length", [1, 10, 25])
def test_the_turn_is_so_many_steps_after_the_cue_and_the_right_one_pays(length: int) -> None:
    for seed in range(10):
        right = play(TMaze(length), seed, lambda cue: UP if cue > 0 else DOWN)
        wrong = play(TMaze(length), seed, lambda cue: DOWN if cue > 0 else UP)
        assert right == ([0.0] * length + [1.0], False)
        assert wrong == ([0.0] * (length + 1), False)


def test_without_a_memory_half_of_it_is_lost() -> None:
    env = TMaze()
    found = [sum(play(env, seed, lambda _: UP)[0]) for seed in range(400)]
    assert np.mean(found) == pytest.approx(0.5, abs=0.05)


def test_standing_still_is_cut() -> None:
    rewards, cut = play(TMaze(10), 1, lambda _: FORWARD)
    assert (rewards, cut) == ([0.0] * 25, True)


def test_walls_cost() -> None:
    env = TMaze(10)
    env.reset(seed=1)
    rewards = [float(env.step(UP)[1]) for _ in range(25)]
    assert sum(rewards) == pytest.approx(-1.0)


def test_its_length_is_a_setting() -> None:
    config = EnvConfig("headrace/TMaze-v0", kwargs={"length": 3})
    (leaf,) = probe(config).observation
    assert leaf.shape == (2,)
    env = make_env(config)
    env.reset(seed=0)
    assert [bool(env.step(FORWARD)[0][1]) for _ in range(4)] == [False, False, True, True]
