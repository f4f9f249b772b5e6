"""The fork: the slow branch pays most, but only those who follow its cues."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from headrace.actors.config import EnvConfig
from headrace.actors.envs.make import make_env, probe
from headrace.actors.envs.toys.slow_branch import SlowBranch


@pytest.fixture(autouse=True)
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    seconds: list[float] = []
    monkeypatch.setattr(time, "sleep", seconds.append)
    return seconds


def play(env: SlowBranch, branch: int, act: Callable[[Any], int], seed: int = 0) -> float:
    seen, _ = env.reset(seed=seed)
    assert list(seen) == [1, 0, 0, 0, 0, 0]
    total, over, action = 0.0, False, branch
    while not over:
        seen, reward, over, cut, _ = env.step(action)
        assert env.observation_space.contains(seen)
        assert not cut
        total, action = total + reward, act(seen)
    return total


def follow(seen: Any) -> int:
    return int(np.argmax(seen) - 2)


def test_who_follows_the_cues_gets_most(slept: list[float]) -> None:
    env = SlowBranch(quick_s=0.1, slow_s=2.0)
    assert play(env, 1, follow) == 1.0
    assert slept == [0.1] + [2.0] * 8
    assert play(env, 1, lambda seen: 3 - follow(seen)) == 0.0
    slept.clear()
    assert play(env, 0, lambda _: 1) == play(env, 0, lambda _: 0) == 0.6
    assert slept == [0.1] * 18


def test_before_the_cues_are_learnt_the_quick_branch_is_better() -> None:
    env = SlowBranch()
    assert np.mean([play(env, 1, lambda _: 1, seed) for seed in range(400)]) == pytest.approx(
        0.25, abs=0.03
    )


def test_it_is_an_environment_of_ours() -> None:
    config = EnvConfig("headrace/SlowBranch-v0")
    assert [leaf.shape for leaf in probe(config).observation] == [(6,)]
    make_env(config).close()
