"""What the environment allows: from the observation or from info, into the rows."""

import asyncio
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.vector import AutoresetMode

from headrace.actors.action_converter import random_rows
from headrace.actors.config import ActorConfig, EnvConfig
from headrace.actors.envs.added_parts import InfoMask
from headrace.actors.envs.convert import EnvError, Writer, as_data, mask_of
from headrace.actors.envs.make import make_env, probe
from headrace.actors.envs.toys.tasks import Masked
from headrace.actors.stepping.choose import make_stepper
from headrace.actors.stepping.inline import InlineStepper
from headrace.actors.stepping.stepper import EnvsSpec, Frame, Stepper
from headrace.learner.spaces import TERMINATED, TRUNCATED, Leaf

SEEN = Box(-1, 1, (2,), np.float32)
ZEROS = np.zeros(2, np.float32)
TAXI = EnvConfig("Taxi-v4" if "Taxi-v4" in gymnasium.registry else "Taxi-v3", mask="action_mask")


def test_a_part_of_the_observation_is_the_mask() -> None:
    space = Dict(seen=SEEN, legal=MultiBinary(4))
    data = as_data(space, Discrete(4), EnvConfig("some-v0", mask="legal"))
    assert data.observation == (Leaf("seen", "<f4", (2,)), Leaf("legal", "|i1", (4,), mask=True))
    Writer(space, data)  # which is the space it was made of
    as_data(Dict(seen=SEEN, legal=Box(0, 1, (4,), np.bool_)), Discrete(4), EnvConfig(mask="legal"))


@pytest.mark.parametrize(
    ("space", "action", "words"),
    [
        (
            Dict(seen=SEEN, legal=MultiBinary(3)),
            Discrete(4),
            r"int8\[3\]; .* 4 values .* MultiBinary\(4\)",
        ),
        (Dict(seen=SEEN, legal=Box(0, 1, (4,))), Discrete(4), r"is float32\[4\]"),
        (Dict(seen=SEEN, legal=MultiDiscrete([2] * 4)), Discrete(4), "make it MultiBinary"),
        (Dict(seen=SEEN, legal=MultiBinary(4)), SEEN, "no choices to mask; leave env.mask out"),
        (Dict(legal=MultiBinary(4)), Discrete(4), "nothing but the mask"),
        (SEEN, Discrete(4), r"is no part of the observation, .* set actor.stepping = \"inline\""),
    ],
)
def test_what_cannot_be_the_mask(space: Any, action: Any, words: str) -> None:
    with pytest.raises(EnvError, match=f"some-v0: .*{words}") as caught:
        as_data(space, action, EnvConfig("some-v0", mask="legal"))
    assert "\n" not in str(caught.value)


class Told(gymnasium.Env[Any, Any]):
    """Its spaces and infos are what the test says."""

    def __init__(self, observation: Any, action: Any, info: Any) -> None:
        self.observation_space, self.action_space, self.info = observation, action, info

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # noqa: ARG002
        super().reset(seed=seed)
        return self.observation_space.sample(), self.info

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 0.0, action == 1, False, self.info


@pytest.mark.parametrize(
    ("space", "names"),
    [
        (SEEN, ["legal", "obs"]),
        (Tuple([SEEN, SEEN]), ["legal", "obs.0", "obs.1"]),
        (Dict(a=SEEN, z=SEEN), ["a", "legal", "z"]),
    ],
)
def test_an_entry_of_info_becomes_a_part(space: Any, names: list[str]) -> None:
    env = InfoMask(Told(space, Discrete(3), {"legal": [True, False, True]}), "legal")
    data = as_data(env.observation_space, env.action_space, EnvConfig(mask="legal"))
    assert sorted(leaf.name for leaf in data.observation) == names
    for observation in (env.reset()[0], env.step(0)[0]):
        assert env.observation_space.contains(observation)
        np.testing.assert_array_equal(observation["legal"], [1, 0, 1])


def test_a_mask_for_each_choice() -> None:
    """As gymnasium's own spaces take them: a tuple of arrays."""
    given = (np.array([1, 0], np.int8), np.array([0, 1, 1], np.int8))
    env = InfoMask(Told(SEEN, MultiDiscrete([2, 3]), {"legal": given}), "legal")
    np.testing.assert_array_equal(env.reset()[0]["legal"], [1, 0, 0, 1, 1])


@pytest.mark.parametrize(
    ("info", "words"),
    [
        (
            {"other": 1},
            r"neither a part of the observation, \['obs'\], nor an entry of info, \['other'\]",
        ),
        ({"legal": [1, 0]}, r"info\['legal'\] is int64\[2\]; .* each of the 3 values"),
        ({"legal": [1.0, 0.0, 1.0]}, r"is float64\[3\]"),
    ],
)
def test_an_info_that_is_wrong(info: Any, words: str) -> None:
    env = InfoMask(Told(SEEN, Discrete(3), info), "legal")
    with pytest.raises(ValueError, match=words) as caught:
        env.reset()
    assert "\n" not in str(caught.value)
    # After the last step nothing has to be allowed.
    env.env.info = {}  # type: ignore[attr-defined]
    np.testing.assert_array_equal(env.step(1)[0]["legal"], [0, 0, 0])
    with pytest.raises(ValueError, match="nor an entry of info"):
        env.step(0)


def test_a_mask_that_allows_nothing() -> None:
    space = Dict(seen=SEEN, legal=MultiBinary(5))
    data = as_data(space, MultiDiscrete([2, 3]), EnvConfig(mask="legal"))
    made = Writer(space, data)
    rows: dict[str, Any] = {"seen": np.ones((2, 2), np.float32), "legal": np.ones((2, 5), np.int8)}
    none = {"seen": ZEROS, "legal": np.array([1, 0, 0, 0, 0], np.int8)}
    made.write(rows, 0, none | {"legal": np.array([0, 1, 0, 0, 1], np.int8)})
    with pytest.raises(ValueError, match=r"^legal: the mask allows nothing for choice 1$"):
        made.write(rows, 0, none)
    made.write(rows, 0, none, last=True)
    batch = {"seen": np.zeros((2, 2), np.float32), "legal": np.array([[1] * 5, none["legal"]])}
    with pytest.raises(ValueError, match="allows nothing for choice 1"):
        made.write_batch(rows, slice(0, 2), batch)
    made.write_batch(rows, slice(0, 2), batch, last=np.array([False, True]))


def test_taxi() -> None:
    """gymnasium's own example of info["action_mask"]: what is masked does not move it."""
    data = probe(TAXI)
    assert [leaf.name for leaf in data.observation if leaf.mask] == ["action_mask"]
    env = make_env(TAXI)
    dice = np.random.default_rng(3)
    observation, _ = env.reset(seed=3)
    for _ in range(60):
        mask = mask_of(env, observation, data)
        assert mask is not None
        before = observation["obs"]
        (action,) = random_rows(data.action, dice, 1, mask)
        observation, _, ended, cut, _ = env.step(action)
        assert observation["obs"] != before or ended or cut
    env.close()


def played(stepper: Stepper, steps: int, choose: Callable[[Frame], Any]) -> int:
    """How many episodes ended; after an end nothing is allowed, and nobody minds."""
    frame, ends = stepper.frame, 0
    groups = set(range(frame.groups))

    async def run() -> None:
        nonlocal ends
        news = asyncio.Event()
        stepper.start(news)
        for _ in range(steps):
            waiting = set(groups)
            async with asyncio.timeout(120):
                while waiting := waiting - set(stepper.ready()):
                    await news.wait()
                    news.clear()
            over = frame.flags & (TERMINATED | TRUNCATED) != 0
            np.testing.assert_array_equal(frame.obs["allowed"].any(axis=1), ~over)
            assert (frame.reward >= 0).all()
            ends += int(over.sum())
            actions = choose(frame)
            for group in groups:
                stepper.send(group, actions[frame.columns(group)])

    try:
        asyncio.run(run())
    finally:
        stepper.close()
    assert stepper.failures() == []
    return ends


def collect(frame: Frame) -> Any:
    """Any allowed move that leads to the coin, which the board shows."""
    board: Any = frame.obs["board"]
    row, column = board[:, 2] - board[:, 0], board[:, 3] - board[:, 1]
    sideways = np.where(column > 0, 3, 2)
    return np.where(row > 0, 1, np.where(row < 0, 0, sideways))


@pytest.mark.parametrize(
    "stepping",
    ["inline", "threads", pytest.param("processes", marks=pytest.mark.processes), "auto"],
)
def test_masks_come_with_the_frame(stepping: Any) -> None:
    config = EnvConfig("headrace/Masked-v0", mask="allowed")
    stepper = make_stepper(ActorConfig(stepping=stepping, groups=2), config, envs=2, seed=5)
    assert played(stepper, 100, collect) >= 8


class Rows(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """A vector class of Masked, one reset by the step after its end."""

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self._envs = [Masked() for _ in range(num_envs)]
        self._over = [False] * num_envs
        self.single_observation_space = self._envs[0].observation_space
        self.single_action_space = self._envs[0].action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # noqa: ARG002
        return self._stacked([env.reset(seed=seed)[0] for env in self._envs]), {}

    def step(self, actions: Any) -> Any:
        each = [
            (env.reset()[0], 0.0, False, False) if over else env.step(int(action))[:4]
            for env, over, action in zip(self._envs, self._over, actions, strict=True)
        ]
        seen, rewards, ended, cut = zip(*each, strict=True)
        self._over = [a or b for a, b in zip(ended, cut, strict=True)]
        return self._stacked(seen), np.array(rewards), np.array(ended), np.array(cut), {}

    def _stacked(self, seen: Any) -> Any:
        return {name: np.stack([one[name] for one in seen]) for name in ("allowed", "board")}


def test_masks_of_a_vector_class() -> None:
    gymnasium.register(
        "Rows-v0",
        entry_point="headrace.actors.envs.toys.tasks:Masked",
        vector_entry_point=f"{__name__}:Rows",
    )
    config = EnvConfig("Rows-v0", mask="allowed")
    stepper = InlineStepper(EnvsSpec(config, probe(config), 2, envs=2, seed=5, vector=True))
    assert played(stepper, 100, collect) >= 8


def test_a_mask_that_is_missing_ends_the_start_with_one_line() -> None:
    config = EnvConfig("CartPole-v1", mask="legal")
    stepper = InlineStepper(EnvsSpec(config, probe(config), 1, envs=1, seed=0))
    with pytest.raises(EnvError, match=r"CartPole-v1 failed in reset .*env.mask names 'legal'"):
        stepper.start(asyncio.Event())
    stepper.close()
