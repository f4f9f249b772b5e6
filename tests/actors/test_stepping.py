"""Ways to step, against the environments themselves."""

import asyncio
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from actors.config import EnvConfig
from actors.envs import EnvError
from actors.stepping.inline import Inline
from actors.stepping.stepper import Stepper
from actors.stepping.vector import Vector
from learner.spaces import DEAD, TERMINATED, TRUNCATED

# A random CartPole lasts about 22 steps, so both kinds of ends are met often.
CARTPOLE = EnvConfig("CartPole-v1", {"max_episode_steps": 20})
Actions = Callable[[int], NDArray[np.int64]]


def ready(stepper: Stepper) -> list[int]:
    return asyncio.run(stepper.ready())


def dice(seed: int) -> Actions:
    rng = np.random.default_rng(seed)
    return lambda count: rng.integers(0, 2, count)


# ---- inline ---------------------------------------------------------------------------------


class Reference:
    """One environment as gymnasium's documentation steps it; an end is followed by a reset."""

    def __init__(self, seed: int) -> None:
        self.env = gymnasium.make(CARTPOLE.id, **CARTPOLE.kwargs)
        self.obs, _ = self.env.reset(seed=seed)
        self.over = False

    def step(self, action: int) -> tuple[Any, float, int]:
        if self.over:
            self.over = False
            self.obs, _ = self.env.reset()
            return self.obs, 0.0, DEAD
        self.obs, reward, ended, cut, _ = self.env.step(action)
        self.over = ended or cut
        return self.obs, float(reward), ended * TERMINATED + cut * TRUNCATED


def test_inline_is_the_environment_step_by_step() -> None:
    groups, envs, seed = 2, 3, 11
    stepper = Inline(CARTPOLE, groups=groups, envs=envs, seed=seed)
    references = [Reference(seed + index) for index in range(groups * envs)]
    stepper.reset()
    assert ready(stepper) == [0, 1]
    np.testing.assert_array_equal(stepper.frame.rows, [r.obs for r in references])
    throw, met = dice(5), set()
    for _ in range(200):
        for group in range(groups):
            columns, actions = stepper.frame.columns(group), throw(envs)
            stepper.send(group, actions)
            expected = [
                reference.step(int(action))
                for reference, action in zip(references[columns], actions, strict=True)
            ]
            rows, rewards, flags = zip(*expected, strict=True)
            np.testing.assert_array_equal(stepper.frame.rows[columns], rows)
            np.testing.assert_array_equal(stepper.frame.reward[columns], rewards)
            np.testing.assert_array_equal(stepper.frame.flags[columns], flags)
            met |= set(flags)
    assert met >= {0, TERMINATED, TRUNCATED, DEAD}
    stepper.close()


def test_inline_steps_only_the_group_that_was_sent() -> None:
    stepper = Inline(CARTPOLE, groups=3, envs=1, seed=1)
    stepper.reset()
    assert ready(stepper) == [0, 1, 2]
    assert ready(stepper) == []
    before = stepper.frame.rows.copy()
    stepper.send(1, np.zeros(1, np.int64))
    moved = (stepper.frame.rows != before).any(axis=1)
    assert moved.tolist() == [False, True, False]
    stepper.send(0, np.zeros(1, np.int64))
    assert ready(stepper) == [1, 0]
    stepper.close()


# ---- what every way to step must do ---------------------------------------------------------


def pole(obs: NDArray[np.float32], action: int) -> tuple[NDArray[np.float32], bool]:
    """One step of the real CartPole from this observation, which is its whole state."""
    env: Any = gymnasium.make(CARTPOLE.id).unwrapped
    env.reset(seed=0)
    env.state = tuple(float(number) for number in obs)
    after, _, ended, _, _ = env.step(action)
    return after, ended


@pytest.mark.parametrize("kind", [Inline, Vector])
def test_cartpole_as_the_flags_tell_it(kind: type[Inline] | type[Vector]) -> None:
    groups, envs = 2, 2
    stepper = kind(CARTPOLE, groups=groups, envs=envs, seed=1)
    frame = stepper.frame
    stepper.reset()
    assert ready(stepper) == [0, 1]
    age = np.zeros(groups * envs, np.int64)
    throw, met = dice(2), set()
    for _ in range(60):
        before, flags_before = frame.rows.copy(), frame.flags.copy()
        actions = throw(groups * envs)
        for group in range(groups):
            stepper.send(group, actions[frame.columns(group)])
        assert ready(stepper) == [0, 1]
        for column in range(groups * envs):
            row, flags = frame.rows[column], int(frame.flags[column])
            if flags_before[column] & (TERMINATED | TRUNCATED):
                # The dead step: it only resets, whatever the action was.
                assert flags == DEAD
                assert frame.reward[column] == 0.0
                assert np.all(np.abs(row) <= 0.05)
                age[column] = 0
            else:
                # A live step, the last of an episode included, delivers what it led to.
                age[column] += 1
                after, ended = pole(before[column], int(actions[column]))
                np.testing.assert_allclose(row, after, atol=1e-5)
                assert flags & TERMINATED == (TERMINATED if ended else 0)
                assert flags & TRUNCATED == (TRUNCATED if age[column] == 20 else 0)
                assert frame.reward[column] == 1.0
            met.add(flags)
    assert met >= {0, TERMINATED, TRUNCATED, DEAD}
    stepper.close()


@pytest.mark.parametrize("kind", [Inline, Vector])
def test_every_environment_begins_with_a_seed_of_its_own(
    kind: type[Inline] | type[Vector],
) -> None:
    def first(seed: int) -> list[tuple[float, ...]]:
        stepper = kind(CARTPOLE, groups=2, envs=2, seed=seed)
        stepper.reset()
        stepper.close()
        return [tuple(row) for row in stepper.frame.rows.tolist()]

    assert len(set(first(1))) == 4
    assert first(1) == first(1)
    assert not set(first(1)) & set(first(100))


# ---- what can be wrong with an environment --------------------------------------------------


class Faulty(gymnasium.Env[Any, Any]):
    """Well until it fails in the way it is told."""

    def __init__(self, fault: str) -> None:
        self.observation_space = Box(-1, 1, (3,), np.float32)
        self.action_space = Discrete(2)
        self.fault = fault
        self.closed = False

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        if self.fault == "reset":
            raise RuntimeError("the simulator\n  is gone")
        size = {"short reset": 2, "one number": 1}.get(self.fault, 3)
        return np.zeros(size, np.float32), {}

    def step(self, _action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.fault == "step":
            raise RuntimeError("the simulator\n  is gone")
        if self.fault == "second reset":
            self.fault = "reset"
        size = 2 if self.fault == "short step" else 3
        return np.zeros(size, np.float32), 1.0, self.fault == "reset", False, {}

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Callable[..., EnvConfig]:
    """A run's environments, of which number 2 has the fault."""

    def _make(fault: str) -> EnvConfig:
        module = ModuleType("mine")
        made: list[Faulty] = []

        def factory() -> Faulty:
            made.append(Faulty(fault if len(made) == 2 else ""))
            return made[-1]

        module.__dict__.update(factory=factory, made=made)
        monkeypatch.setitem(sys.modules, "mine", module)
        return EnvConfig("mine:factory")

    return _make


def play(stepper: Stepper, steps: int = 2) -> None:
    stepper.reset()
    for _ in range(steps):
        for group in range(stepper.frame.groups):
            stepper.send(group, np.zeros(stepper.frame.envs, np.int64))


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("reset", "failed in reset (environment 2, seed 42): RuntimeError: the simulator is gone"),
        ("second reset", "failed in reset (environment 2, seed 42): RuntimeError: the simulator"),
        ("step", "failed in step (environment 2, seed 42): RuntimeError: the simulator is gone"),
        ("short reset", "an observation of shape [2]; its space says [3]"),
        ("one number", "an observation of shape [1]; its space says [3]"),
        ("short step", "failed in step (environment 2, seed 42): ValueError: "),
    ],
)
def test_a_fault_names_environment_number_and_seed(
    make: Callable[[str], EnvConfig], fault: str, words: str
) -> None:
    stepper = Inline(make(fault), groups=2, envs=2, seed=40)
    with pytest.raises(EnvError) as caught:
        play(stepper)
    line = str(caught.value)
    assert line.startswith("mine:factory failed in ")
    assert "(environment 2, seed 42)" in line
    assert words in line
    assert "\n" not in line


def test_close_closes_all(make: Callable[[str], EnvConfig]) -> None:
    stepper = Inline(make(""), groups=2, envs=2, seed=0)
    play(stepper)
    stepper.close()
    assert [env.closed for env in sys.modules["mine"].made] == [True] * 4


def test_environments_of_one_run_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wider(Faulty):
        made = 0

        def __init__(self) -> None:
            super().__init__("")
            Wider.made += 1
            self.action_space = Discrete(1 + Wider.made)

    module = ModuleType("mine")
    module.__dict__["Wider"] = Wider
    monkeypatch.setitem(sys.modules, "mine", module)
    with pytest.raises(
        EnvError, match=r"^mine:Wider changes .*Discrete\(2\), then .*Discrete\(3\)$"
    ):
        Inline(EnvConfig("mine:Wider"), groups=1, envs=2, seed=0)


class FaultyVector(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Vector number 1 fails in the way it is told."""

    metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}  # noqa: RUF012
    made = 0

    def __init__(self, num_envs: int, fault: str) -> None:
        self.fault = fault if FaultyVector.made == 1 else ""
        FaultyVector.made += 1
        self.num_envs = num_envs
        self.single_observation_space = self.observation_space = Box(-1, 1, (3,), np.float32)
        actions = 3 if self.fault == "other actions" else 2
        self.single_action_space = self.action_space = Discrete(actions)

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        if self.fault == "reset":
            raise RuntimeError("the simulator\n  is gone")
        shape = (3,) if self.fault == "one row" else (self.num_envs, 3)
        return np.zeros(shape, np.float32), {}

    def step(self, _actions: Any) -> Any:
        if self.fault == "step":
            raise RuntimeError("the simulator\n  is gone")
        none = np.zeros(self.num_envs, np.bool_)
        return np.zeros((self.num_envs, 3), np.float32), np.ones(self.num_envs), none, none, {}


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("reset", "failed in reset (group 1, seed 42): RuntimeError: the simulator is gone"),
        ("step", "failed in step (group 1, seed 42): RuntimeError: the simulator is gone"),
        ("one row", "an observation of shape [3]; its space says [2, 3]"),
        ("other actions", "changes its spaces"),
    ],
)
def test_a_fault_of_a_vector_names_group_and_seed(
    monkeypatch: pytest.MonkeyPatch, fault: str, words: str
) -> None:
    def make(**kwargs: Any) -> FaultyVector:
        return FaultyVector(**kwargs)

    spec = gymnasium.envs.registration.EnvSpec(id="Faulty-v0", vector_entry_point=make)
    monkeypatch.setitem(gymnasium.registry, "Faulty-v0", spec)
    monkeypatch.setattr(FaultyVector, "made", 0)
    with pytest.raises(EnvError) as caught:
        play(Vector(EnvConfig("Faulty-v0", {"fault": fault}), groups=2, envs=2, seed=40))
    line = str(caught.value)
    assert line.startswith("Faulty-v0 ")
    assert words in line
    assert "\n" not in line


def test_an_environment_without_a_vector_class() -> None:
    with pytest.raises(EnvError, match=r'^Acrobot-v1 .* set actor.stepping = "inline"$'):
        Vector(EnvConfig("Acrobot-v1"), groups=1, envs=2, seed=0)
