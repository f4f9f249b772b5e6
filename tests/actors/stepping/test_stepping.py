"""Ways to step, against the environments themselves."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.actors.config import ActorConfig, EnvConfig
from headrace.actors.envs.convert import EnvError
from headrace.actors.envs.make import probe
from headrace.actors.stepping.choose import make_stepper, stepping_by_cost
from headrace.actors.stepping.envpool_stepper import EnvPoolStepper
from headrace.actors.stepping.inline import InlineStepper
from headrace.actors.stepping.processes.process_stepper import ProcessStepper
from headrace.actors.stepping.step_cost import StepCost, speedup
from headrace.actors.stepping.stepper import EnvsSpec, Stepper
from headrace.actors.stepping.threads import ThreadStepper
from headrace.learner.spaces import DEAD, TERMINATED, TRUNCATED, Leaf, Spaces, discrete

# A random CartPole lasts about 22 steps, so both kinds of ends are met often.
CARTPOLE = EnvConfig("CartPole-v1", {"max_episode_steps": 20})


WAYS: list[Any] = [
    InlineStepper,
    ThreadStepper,
    pytest.param(ProcessStepper, marks=pytest.mark.processes),
]
NO_ACTION = np.zeros(1, np.int64)


class Play:
    """A stepper on a loop of its own."""

    def __init__(self, stepper: Stepper) -> None:
        self.stepper = stepper
        self.frame = stepper.frame
        self.news = asyncio.Event()
        self._ready: set[int] = set()

    async def start(self) -> None:
        self.stepper.start(self.news)
        await self.wait(range(self.frame.groups))

    async def wait(self, groups: "range | list[int]", seconds: float = 20.0) -> None:
        """Until these are ready; nothing is asked before there is news."""
        self._ready |= set(self.stepper.ready())
        async with asyncio.timeout(seconds):
            while not self._ready >= set(groups):
                await self.news.wait()
                self.news.clear()
                self._ready |= set(self.stepper.ready())
        self._ready -= set(groups)

    async def step(self, actions: NDArray[np.int64]) -> None:
        """All groups."""
        for group in range(self.frame.groups):
            self.stepper.send(group, actions[self.frame.columns(group)])
        await self.wait(range(self.frame.groups))


def play(stepper: Stepper, story: Callable[[Play], Awaitable[None]]) -> None:
    async def run() -> None:
        playing = Play(stepper)
        try:
            await playing.start()
            await story(playing)
        finally:
            stepper.close()

    asyncio.run(run())


def rows(playing: Play) -> NDArray[Any]:
    return playing.frame.obs["obs"]


def made(
    kind: Any,
    config: EnvConfig = CARTPOLE,
    *,
    groups: int,
    envs: int,
    seed: int,
    vector: bool = False,
    **options: Any,
) -> Stepper:
    spec = EnvsSpec(config, probe(config), groups, envs, seed, vector)
    stepper: Stepper = kind(spec, **options)
    return stepper


# ---- what every way to step must do ---------------------------------------------------------


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


@pytest.mark.parametrize("kind", WAYS)
def test_metrics_stand_beside_the_reward(kind: Any) -> None:
    """gymnasium's wrapper says at an episode's last step how long it was."""
    config = EnvConfig(
        CARTPOLE.id,
        CARTPOLE.kwargs,
        wrappers=({"id": "gymnasium.wrappers:RecordEpisodeStatistics"},),
        metrics=("missing", "episode.l"),
    )

    async def story(playing: Play) -> None:
        metrics, lengths = playing.frame.metrics, np.zeros(4)
        assert metrics is not None and np.isnan(metrics).all()
        for _ in range(60):
            await playing.step(np.zeros(4, np.int64))
            flags = playing.frame.flags
            lengths = np.where(flags == DEAD, 0, lengths + 1)
            ended = flags & (TERMINATED | TRUNCATED) != 0
            np.testing.assert_array_equal(metrics[ended, 1], lengths[ended])
            assert np.isnan(metrics[~ended]).all() and np.isnan(metrics[:, 0]).all()

    play(made(kind, config, groups=2, envs=2, seed=3), story)


@pytest.mark.parametrize("kind", WAYS)
def test_it_is_the_environment_step_by_step(kind: Any) -> None:
    groups, envs, seed = 3, 2, 11
    references = [Reference(seed + column) for column in range(groups * envs)]
    met: set[int] = set()

    async def story(playing: Play) -> None:
        np.testing.assert_array_equal(rows(playing), [r.obs for r in references])
        dice = np.random.default_rng(5)
        for _ in range(150):
            actions = dice.integers(0, 2, groups * envs)
            await playing.step(actions)
            expected = [r.step(int(a)) for r, a in zip(references, actions, strict=True)]
            observations, rewards, flags = zip(*expected, strict=True)
            np.testing.assert_array_equal(rows(playing), observations)
            np.testing.assert_array_equal(playing.frame.reward, rewards)
            np.testing.assert_array_equal(playing.frame.flags, flags)
            np.testing.assert_array_equal(playing.frame.action, actions)
            met.update(flags)
        assert (playing.frame.spent > 0).all()
        assert playing.stepper.failures() == []

    play(made(kind, groups=groups, envs=envs, seed=seed), story)
    assert met >= {0, TERMINATED, TRUNCATED, DEAD}


@pytest.mark.parametrize("kind", WAYS)
def test_only_the_group_that_was_sent_moves(kind: Any) -> None:
    async def story(playing: Play) -> None:
        assert playing.stepper.ready() == []
        before = rows(playing).copy()
        playing.stepper.send(1, NO_ACTION)
        await playing.wait([1])
        assert (rows(playing) != before).any(axis=1).tolist() == [False, True, False]
        assert playing.stepper.ready() == []

    play(made(kind, groups=3, envs=1, seed=1), story)


@pytest.mark.processes
def test_workers_share_the_groups() -> None:
    async def story(playing: Play) -> None:
        for _ in range(50):
            await playing.step(np.zeros(5, np.int64))
        assert playing.frame.flags.any()

    play(made(ProcessStepper, groups=5, envs=1, seed=1, workers=2), story)


def pole(obs: NDArray[np.float32], action: int) -> tuple[NDArray[np.float32], bool]:
    """One step of the real CartPole from this observation, which is its whole state."""
    env: Any = gymnasium.make(CARTPOLE.id).unwrapped
    env.reset(seed=0)
    env.state = tuple(float(number) for number in obs)
    after, _, ended, _, _ = env.step(action)
    return after, ended


async def as_the_flags_tell_it(playing: Play) -> None:
    frame, met = playing.frame, set()
    count = frame.groups * frame.envs
    age, dice = np.zeros(count, np.int64), np.random.default_rng(2)
    for _ in range(60):
        before, flags_before = rows(playing).copy(), frame.flags.copy()
        actions = dice.integers(0, 2, count)
        await playing.step(actions)
        for column in range(count):
            row, flags = rows(playing)[column], int(frame.flags[column])
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


@pytest.mark.parametrize("kind", WAYS)
def test_cartpole_s_vector_class_as_the_flags_tell_it(kind: Any) -> None:
    play(made(kind, groups=2, envs=2, seed=1, vector=True), as_the_flags_tell_it)


@pytest.mark.slow
def test_envpool_as_the_flags_tell_it() -> None:
    pytest.importorskip("envpool")
    config = EnvConfig("envpool:CartPole-v1", {"max_episode_steps": 20})
    play(EnvPoolStepper(config, groups=4, envs=1, seed=1), as_the_flags_tell_it)


@pytest.mark.slow
def test_envpool_with_one_group() -> None:
    pytest.importorskip("envpool")

    async def story(playing: Play) -> None:
        for _ in range(3000):
            await playing.step(NO_ACTION)

    play(EnvPoolStepper(EnvConfig("envpool:CartPole-v1"), groups=1, envs=1, seed=1), story)


def test_envpool_with_fewer_groups_under_way_than_a_batch() -> None:
    pytest.importorskip("envpool")

    async def story(playing: Play) -> None:
        for _ in range(20):
            playing.stepper.send(3, NO_ACTION)
            await playing.wait([3], 5.0)

    stepper = EnvPoolStepper(EnvConfig("envpool:CartPole-v1"), groups=8, envs=1, seed=1)
    play(stepper, story)
    assert "envpool" not in [thread.name for thread in threading.enumerate()]
    with pytest.raises(EnvError, match=r"set unroll.envs = 1"):
        EnvPoolStepper(EnvConfig("envpool:CartPole-v1"), groups=8, envs=2, seed=1)
    for batch in (0, 9, 1.5):
        config = EnvConfig("envpool:CartPole-v1", {"batch_size": batch})
        with pytest.raises(EnvError, match=r"batch_size must be 1 to 8"):
            EnvPoolStepper(config, groups=8, envs=1, seed=1)


@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize("kind", WAYS)
def test_every_environment_begins_with_a_seed_of_its_own(kind: Any, vector: bool) -> None:
    def first(seed: int) -> list[tuple[float, ...]]:
        found: list[tuple[float, ...]] = []

        async def story(playing: Play) -> None:
            found.extend(tuple(row) for row in rows(playing).tolist())

        play(made(kind, groups=2, envs=2, seed=seed, vector=vector), story)
        return found

    assert len(set(first(1))) == 4
    assert first(1) == first(1)
    assert not set(first(1)) & set(first(100))


# ---- which way ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cost", "groups", "cores", "expected"),
    [
        (StepCost(20e-6, 1.0), 8, 2, "inline"),
        (StepCost(20e-6, 0.1), 8, 2, "inline"),
        (StepCost(3e-3, 0.02), 8, 2, "threads"),
        (StepCost(3e-3, 0.02), 1, 2, "inline"),
        (StepCost(50e-3, 0.02), 1, 2, "threads"),
        (StepCost(3e-3, 1.0), 8, 2, ""),
        (StepCost(3e-3, 1.0), 8, 1, "inline"),
        (StepCost(50e-3, 1.0), 8, 1, "processes"),
    ],
)
def test_what_a_cost_decides(cost: StepCost, groups: int, cores: int, expected: str) -> None:
    assert stepping_by_cost(cost, groups=groups, envs=1, cores=cores)[0] == expected


def test_several_environments_that_wait_are_not_one_after_another() -> None:
    assert stepping_by_cost(StepCost(0.2e-3, 0.02), groups=1, envs=16, cores=2)[0] == "threads"
    assert stepping_by_cost(StepCost(0.2e-3, 1.0), groups=1, envs=16, cores=2)[0] == "inline"


class Spin(gymnasium.Env[Any, Any]):
    """Python that computes: a hundred microseconds a step, or at times a hundred times that."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # noqa: ARG002
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, _action: Any) -> Any:
        self.steps += 1
        until = time.thread_time() + (0.01 if self.steps % 40 == 0 else 0.0001)
        while time.thread_time() < until:
            pass
        return np.zeros(1, np.float32), 0.0, False, False, {}


SPIN = Spaces((Leaf("obs", "<f4", (1,)),), discrete(2))


def test_threads_are_no_use_to_python_that_computes_however_uneven_its_steps() -> None:
    first, second = Spin(), Spin()
    second.steps = 20  # their long steps do not meet
    assert speedup(first, second, SPIN, config=EnvConfig("Spin")) < 1.3


@pytest.mark.parametrize(
    ("stepping", "config", "kind"),
    [
        pytest.param("auto", CARTPOLE, InlineStepper, marks=pytest.mark.alone),  # it measures
        pytest.param("vector", CARTPOLE, InlineStepper, marks=pytest.mark.alone),
        ("threads", CARTPOLE, ThreadStepper),
        pytest.param("processes", CARTPOLE, ProcessStepper, marks=pytest.mark.processes),
    ],
)
def test_the_door(
    stepping: Any, config: EnvConfig, kind: type[Stepper], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    stepper = make_stepper(ActorConfig(stepping=stepping, groups=2), config, envs=2, seed=1)
    stepper.close()
    assert isinstance(stepper, kind)
    assert (stepper.frame.groups, stepper.frame.envs) == (2, 2)
    # What was measured is said; what the run says itself is not said again.
    assert ("stepping = " in caplog.text) == (stepping in ("auto", "vector"))


def test_an_environment_without_a_vector_class() -> None:
    with pytest.raises(EnvError, match=r'^Acrobot-v1 .* set actor.stepping = "inline"$'):
        make_stepper(ActorConfig(stepping="vector"), EnvConfig("Acrobot-v1"), envs=2, seed=0)
