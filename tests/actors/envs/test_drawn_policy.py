"""Checks which policy of a population plays: all in turn, the same again by a seed, or one."""

import re
from collections import Counter
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

from headrace.actors.config import EnvConfig
from headrace.actors.envs.added_parts import DrawnPolicy
from headrace.actors.envs.convert import EnvError
from headrace.actors.envs.make import make_env, make_vector, probe
from headrace.learner.spaces import POLICY, Leaf

MANY = EnvConfig("CartPole-v1", population=5)
SIGNALS = "headrace.actors.envs.toys.several_agents:Signals"


class Counting(gymnasium.Env[Any, Any]):
    """Ends each episode after `length` steps."""

    def __init__(self, length: int = 50, space: "gymnasium.Space[Any] | None" = None) -> None:
        self.observation_space = space or Box(-1, 1, (2,), np.float32)
        self.action_space = Discrete(2)
        self._length, self._at = length, 0

    def reset(self, *, seed: int | None = None, **_: Any) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._at = 0
        return self.observation_space.sample(), {}

    def step(self, _: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._at += 1
        return self.observation_space.sample(), 1.0, self._at >= self._length, False, {}


def episodes(env: DrawnPolicy, count: int) -> list[int]:
    """Plays; returns who played each episode. Nobody changes within one."""
    found = []
    for _ in range(count):
        observation, _ = env.reset()
        found.append(observation[POLICY])
        ended = False
        while not ended:
            observation, _, ended, _, _ = env.step(0)
            assert observation[POLICY] == found[-1]
    return found


def test_all_play_in_turn_long_enough_each() -> None:
    env = DrawnPolicy(Counting(50), 5, -1, 7)
    found = episodes(env, 60)
    # Three episodes of 50 steps are the first that are 128 steps or more.
    assert [len(set(found[at : at + 3])) for at in range(0, 60, 3)] == [1] * 20
    rounds = [sorted(found[at : at + 15 : 3]) for at in range(0, 60, 15)]
    assert rounds == [[0, 1, 2, 3, 4]] * 4
    assert Counter(episodes(DrawnPolicy(Counting(200), 5, -1, 7), 10)) == dict.fromkeys(range(5), 2)


def test_a_seed_plays_the_same_policy_again() -> None:
    env = DrawnPolicy(Counting(3), 50, -1, 7)
    first = [env.reset(seed=seed)[0][POLICY] for seed in range(20)]
    assert [env.reset(seed=seed)[0][POLICY] for seed in range(20)] == first
    assert len(set(first)) > 5


def test_one_plays_all_episodes() -> None:
    env = make_env(EnvConfig("CartPole-v1", population=5, policy=3))
    assert {env.reset(seed=seed)[0][POLICY] for seed in range(9)} == {3}
    env.close()


def test_it_is_a_part_of_the_observation() -> None:
    spaces = probe(MANY)
    names = {leaf.name: leaf for leaf in spaces.observation}
    assert names[POLICY] == Leaf(POLICY, "<i8", (), (5,))
    assert names["obs"].shape == (4,)
    assert spaces.population == 5
    inner = Counting(space=Dict(place=Box(0, 1, (2,)), speed=Box(0, 1)))
    parts = DrawnPolicy(inner, 5, -1, 7).observation_space
    assert isinstance(parts, Dict) and set(parts) == {"place", "speed", POLICY}


def test_what_it_cannot_be_is_said() -> None:
    with pytest.raises(EnvError, match=r"env.policy = 5: the policies are numbered 0 to 4"):
        make_env(EnvConfig("CartPole-v1", population=5, policy=5))
    with pytest.raises(EnvError, match=re.escape(f"play alone, and {SIGNALS} has")):
        probe(EnvConfig(SIGNALS, population=5))
    with pytest.raises(EnvError, match=r"vector class takes no env.population"):
        make_vector(MANY, 3)
    named = Counting(space=Dict(policy=Box(0, 1)))
    with pytest.raises(EnvError, match="'policy' to the observation, which has such a part"):
        DrawnPolicy(named, 5, -1, 7)
