"""Every kind of action through every way to step: the environment gets what its row says."""

import asyncio
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.spaces.utils import flatdim
from gymnasium.spaces.utils import flatten as gymnasium_flatten
from numpy.typing import NDArray

from headrace.actors.action_converter import ActionConverter, random_rows
from headrace.actors.config import EnvConfig
from headrace.actors.envs.make import probe
from headrace.actors.stepping.inline import InlineStepper
from headrace.actors.stepping.processes.process_stepper import ProcessStepper
from headrace.actors.stepping.stepper import EnvsSpec, Frame, Stepper
from headrace.actors.stepping.threads import ThreadStepper

SPACES: dict[str, Any] = {
    "discrete": Discrete(5),
    "from three": Discrete(5, start=3),
    "multidiscrete": MultiDiscrete(np.array([[2, 3], [4, 5]])),
    "multibinary": MultiBinary(3),
    "box": Box(-2.0, 6.0, (2,), np.float32),
    "whole": Box(0, 9, (2,), np.int32),
    "open": Box(-np.inf, np.inf, (), np.float64),
    "nested": Dict(
        arm=Tuple([Box(0.0, 1.0, (2,), np.float32), Discrete(3, start=-1)]), lamp=MultiBinary(2)
    ),
}


def flatten(space: Any, action: Any) -> NDArray[np.float64]:
    return np.asarray(gymnasium_flatten(space, action), np.float64)


class Echo(gymnasium.Env[Any, Any]):
    """Shows the action it got, as gymnasium flattens it; one that is not in its space is an
    error."""

    def __init__(self, kind: str) -> None:
        self.action_space = SPACES[kind]
        self.observation_space = Box(-1e6, 1e6, (flatdim(self.action_space),), np.float64)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # noqa: ARG002
        super().reset(seed=seed)
        return np.zeros(self.observation_space.shape or (), np.float64), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        return flatten(self.action_space, action), 0.0, False, False, {}


class Echoes(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """The same, as a vector class."""

    metadata: dict[str, Any] = {  # noqa: RUF012 - as gymnasium declares it
        "autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP
    }

    def __init__(self, num_envs: int, kind: str) -> None:
        self.num_envs = num_envs
        self._one = Echo(kind)
        self.single_action_space = self._one.action_space
        self.single_observation_space = self._one.observation_space
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:  # noqa: ARG002
        return np.zeros((self.num_envs, flatdim(self.single_action_space))), {}

    def step(self, actions: Any) -> Any:
        assert self.action_space.contains(actions), actions
        each = gymnasium.vector.utils.iterate(self.action_space, actions)
        rows = np.stack([flatten(self.single_action_space, action) for action in each])
        none = np.zeros(self.num_envs, np.bool_)
        return rows, np.zeros(self.num_envs), none, none, {}


gymnasium.register(
    "Echo-v0", entry_point=f"{__name__}:Echo", vector_entry_point=f"{__name__}:Echoes"
)


def echo(kind: str) -> EnvConfig:
    """By import where a worker makes it: that knows nothing of what was registered here."""
    return EnvConfig("tests.actors.stepping.test_stepping_actions:Echo", {"kind": kind})


def stepped(stepper: Stepper, check: Callable[[Frame, Any], None]) -> None:
    """Ten steps of random rows, each checked when all groups are done."""
    frame, dice, action = stepper.frame, np.random.default_rng(2), stepper.spaces.action

    async def run() -> None:
        news, groups = asyncio.Event(), set(range(frame.groups))

        async def wait() -> None:
            waiting = set(groups)
            async with asyncio.timeout(120):
                while waiting := waiting - set(stepper.ready()):
                    await news.wait()
                    news.clear()

        stepper.start(news)
        await wait()
        for _ in range(10):
            rows = random_rows(action, dice, frame.groups * frame.envs)
            if action.numbers:
                rows[:, -action.numbers :] *= 2  # beyond the bounds, too
            for group in groups:
                stepper.send(group, rows[frame.columns(group)])
            await wait()
            np.testing.assert_array_equal(frame.action, rows)
            assert frame.action.dtype == rows.dtype == action.dtype
            check(frame, rows)

    try:
        asyncio.run(run())
    finally:
        stepper.close()
    assert stepper.failures() == []


WAYS: list[Any] = [
    (InlineStepper, False),
    (ThreadStepper, False),
    pytest.param(ProcessStepper, False, marks=pytest.mark.processes),
    (InlineStepper, True),
    (ThreadStepper, True),
]


@pytest.mark.parametrize("kind", list(SPACES))
@pytest.mark.parametrize(
    ("way", "vector"), WAYS, ids=["inline", "threads", "processes", "vector", "vector threads"]
)
def test_the_environment_gets_what_the_row_says(kind: str, way: Any, vector: bool) -> None:
    config = EnvConfig("Echo-v0", {"kind": kind}) if vector else echo(kind)
    spaces = probe(config)
    space, actions = SPACES[kind], ActionConverter(spaces.action)

    def check(frame: Frame, rows: Any) -> None:
        expected = [flatten(space, actions.one(row)) for row in rows]
        np.testing.assert_array_equal(frame.obs["obs"], expected)

    stepped(way(EnvsSpec(config, spaces, groups=2, envs=3, seed=1, vector=vector)), check)
