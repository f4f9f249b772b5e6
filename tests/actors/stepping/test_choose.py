"""Tests that `auto` steps the environments of one group side by side, in parts."""

import threading
from typing import Any

import gymnasium
import numpy as np
import pytest

from headrace.actors.config import ActorConfig, EnvConfig
from headrace.actors.envs.make import probe
from headrace.actors.stepping import choose
from headrace.actors.stepping.choose import make_stepper, parts_of
from headrace.actors.stepping.processes.process_stepper import ProcessStepper
from headrace.actors.stepping.step_cost import StepCost
from headrace.actors.stepping.stepper import EnvsSpec
from headrace.actors.stepping.threads import ThreadStepper
from tests.actors.stepping.test_stepping import Play, play

ENVS = 4
GATE = threading.Barrier(ENVS, timeout=20.0)


class Meeting(gymnasium.Env[Any, Any]):
    """A step ends when all environments of the group are in theirs; one after another they never
    would be."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    crash = False

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # noqa: ARG002
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        GATE.wait()
        if Meeting.crash and action:
            raise RuntimeError("crashed as asked")
        return np.full(1, action, np.float32), float(action), False, False, {}


MEETING = EnvConfig(f"{__name__}:Meeting")


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `auto` would measure of an environment that waits 5 ms."""
    monkeypatch.setattr(choose, "cost_of", lambda *_, **__: StepCost(5e-3, 0.02))


@pytest.mark.usefixtures("waits")
def test_auto_lets_environments_of_a_group_wait_side_by_side() -> None:
    stepper = make_stepper(ActorConfig(groups=1), MEETING, envs=ENVS, seed=1)
    frame = stepper.frame
    assert (frame.groups, frame.envs, frame.parts, stepper.beside) == (ENVS, 1, ENVS, ENVS)
    actions = np.array([0, 1, 1, 0])

    async def story(playing: Play) -> None:
        for _ in range(20):
            await playing.step(actions)
            assert playing.frame.obs["obs"][:, 0].tolist() == actions.tolist()
            assert playing.frame.reward.tolist() == actions.tolist()

    play(stepper, story)


@pytest.mark.usefixtures("waits")
def test_one_that_fails_costs_the_others_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stepper = make_stepper(ActorConfig(groups=1), MEETING, envs=ENVS, seed=1)

    async def story(playing: Play) -> None:
        monkeypatch.setattr(Meeting, "crash", True)
        await playing.step(np.array([0, 0, 1, 0]))
        (failure,) = stepper.failures()
        assert (failure.env, failure.where) == (2, "step")
        assert "crashed as asked" in failure.text
        await playing.step(np.array([0, 0, 0, 0]))
        assert stepper.failures() == []

    play(stepper, story)


def test_what_computes_gets_a_process_for_each_core(monkeypatch: pytest.MonkeyPatch) -> None:
    config = EnvConfig("CartPole-v1")
    monkeypatch.setattr(choose, "cost_of", lambda *_, **__: StepCost(5e-3, 1.0))
    monkeypatch.setattr(choose, "speedup", lambda *_, **__: 1.0)
    monkeypatch.setattr(choose, "_cores", lambda: 4)
    for actor, envs, at_a_time in (
        (ActorConfig(groups=1, count=1), 16, 4),
        (ActorConfig(groups=1, count=2), 16, 2),  # the other sampler wants its cores too
        (ActorConfig(groups=1, count=1, workers=8), 16, 8),
        (ActorConfig(groups=4, count=1), 16, 4),
        (ActorConfig(groups=1, count=1), 1, 1),
    ):
        stepper = make_stepper(actor, config, envs=envs, seed=1)
        stepper.close()
        frame = stepper.frame
        assert isinstance(stepper, ProcessStepper)
        assert (stepper.beside, frame.groups) == (at_a_time, at_a_time)
        assert (frame.parts, frame.envs) == (
            at_a_time // actor.groups,
            envs * actor.groups // at_a_time,
        )


def test_what_the_run_says_is_done_as_it_says() -> None:
    for stepping, kind in (("threads", ThreadStepper), ("processes", ProcessStepper)):
        actor = ActorConfig(groups=2, stepping=stepping)  # type: ignore[arg-type]
        stepper = make_stepper(actor, EnvConfig("CartPole-v1"), envs=4, seed=1)
        stepper.close()
        assert isinstance(stepper, kind)
        assert (stepper.frame.groups, stepper.frame.parts) == (2, 1)


@pytest.mark.parametrize(
    ("envs", "groups", "wanted", "parts"),
    [
        (16, 1, 1, 1),
        (16, 1, 16, 16),
        (16, 1, 2, 2),
        (16, 1, 3, 4),
        (16, 2, 4, 2),
        (7, 1, 2, 7),
        (1, 1, 8, 1),
        (16, 8, 4, 1),
        (64, 8, 256, 32),
    ],
)
def test_parts_are_equal_and_enough(envs: int, groups: int, wanted: int, parts: int) -> None:
    assert parts_of(envs, groups=groups, wanted=wanted) == parts


@pytest.mark.usefixtures("waits")
def test_seeds_are_those_of_whole_groups() -> None:
    config = EnvConfig("CartPole-v1")
    first: list[Any] = []

    async def story(playing: Play) -> None:
        first.append(playing.frame.obs["obs"].copy())

    play(ThreadStepper(EnvsSpec(config, probe(config), 2, envs=4, seed=5)), story)
    split = make_stepper(ActorConfig(groups=2), config, envs=4, seed=5)
    assert split.frame.parts == 4
    play(split, story)
    np.testing.assert_array_equal(*first)
