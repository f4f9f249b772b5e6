"""env.settings: set where they are defined, before an episode, with the newest weights' numbers."""

import asyncio
from typing import Any

import gymnasium
import numpy as np
import pytest

from headrace.actors.config import ActorConfig, EnvConfig
from headrace.actors.envs.convert import EnvError
from headrace.actors.envs.make import make_env, make_vector, probe
from headrace.actors.stepping.choose import make_stepper


class Counts(gymnasium.Env[Any, Any]):
    """Shows the length that its episode began with."""

    observation_space = gymnasium.spaces.Box(-100.0, 100.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    hard = False

    def __init__(self) -> None:
        self.length = 3

    def reset(self, **_: Any) -> Any:
        self.left = self.ends = self.length
        return np.array([self.ends], np.float32), {}

    def step(self, _: Any) -> Any:
        self.left -= 1
        return np.array([self.ends], np.float32), 0.0, self.left <= 0, False, {}


class Limit(gymnasium.Wrapper[Any, Any, Any, Any]):
    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.limit = 0.5


OURS = f"{__name__}:Counts"


def test_each_is_set_where_it_is_defined_and_as_what_it_is() -> None:
    config = EnvConfig(
        OURS,
        wrappers=({"id": f"{__name__}:Limit"},),
        settings={"length": 7, "limit": 2.5, "hard": True},
    )
    env = make_env(config)
    assert isinstance(env, Limit) and env.limit == 2.5
    inside: Any = env.unwrapped
    assert inside.length == 7 and type(inside.length) is int and inside.hard is True
    assert probe(config).settings == ("hard", "length", "limit")
    assert probe(config).digest() == probe(EnvConfig(OURS)).digest()


def test_one_that_is_nowhere_is_named() -> None:
    with pytest.raises(EnvError, match="names wind, and Counts has no such attribute"):
        make_env(EnvConfig(OURS, settings={"wind": 1}))


def test_a_vector_class_is_refused() -> None:
    with pytest.raises(EnvError, match=r"takes no env\.settings"):
        make_vector(EnvConfig("CartPole-v1", settings={"gravity": 1.0}), 2)


@pytest.mark.parametrize(
    "stepping", ["inline", "threads", pytest.param("processes", marks=pytest.mark.processes)]
)
def test_new_numbers_count_from_the_next_episode_on(stepping: Any) -> None:
    config = EnvConfig(OURS, settings={"length": 2})
    stepper = make_stepper(ActorConfig(stepping=stepping), config, envs=1, seed=1)
    seen = []

    async def play() -> None:
        news = asyncio.Event()
        stepper.start(news)
        for turn in range(8):
            while not stepper.ready():
                news.clear()
                await news.wait()
            seen.append(float(stepper.frame.obs["obs"][0, 0]))
            if turn == 0:
                stepper.frame.settings[:] = 4.0  # in the middle of an episode
            stepper.send(0, np.zeros(1, np.int64))

    try:
        asyncio.run(play())
    finally:
        stepper.close()
    # A reset takes a step of its own.
    assert seen == [2.0, 2.0, 2.0, 4.0, 4.0, 4.0, 4.0, 4.0]
