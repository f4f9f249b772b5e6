"""Environments whose agents take turns: each way to step them, against the environment itself."""

import asyncio
import os
import random
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from headrace.actors.acting.trained_policy import PolicyLike
from headrace.actors.config import ActorConfig, EnvConfig, EvaluateConfig
from headrace.actors.envs.convert import EnvError
from headrace.actors.envs.make import make_any, make_env, probe
from headrace.actors.envs.toys.several_agents import Nim
from headrace.actors.evaluator import play as evaluate
from headrace.actors.stepping.choose import make_stepper
from headrace.actors.stepping.processes.process_stepper import ProcessStepper
from headrace.actors.stepping.stepper import EnvFailure, EnvsSpec, Stepper
from headrace.learner.spaces import DEAD, TERMINATED, TRUNCATED
from tests.actors.stepping.test_stepping import WAYS
from tests.needs import missing

NIM = EnvConfig("headrace.actors.envs.toys.several_agents:Nim", metrics=("right",))


def of(name: str, **changes: Any) -> EnvConfig:
    """Names a class of this file."""
    return EnvConfig(f"{__name__}:{name}", changes)


def spec_of(config: EnvConfig, *, envs: int = 1, agents: int = 2) -> EnvsSpec:
    return EnvsSpec(config, probe(config), envs * agents, 1, seed=5, agents=agents, turns=True)


class Turns:
    """A stepper on a loop of its own, of which one environment is followed."""

    def __init__(self, stepper: Stepper) -> None:
        self.stepper, self.frame = stepper, stepper.frame
        self.news = asyncio.Event()
        self._ready: list[int] = []

    async def turn(self, groups: range) -> int:
        """Returns which of these groups is ready; the others are not."""
        async with asyncio.timeout(120):
            while True:
                self._ready += self.stepper.ready()
                found = [group for group in self._ready if group in groups]
                if found:
                    self._ready.remove(found[0])
                    assert len(found) == 1
                    return found[0]
                await self.news.wait()
                self.news.clear()


def play(stepper: Stepper, story: Any) -> None:
    async def run() -> None:
        turns = Turns(stepper)
        try:
            stepper.start(turns.news)
            await story(turns)
        finally:
            stepper.close()

    asyncio.run(run())


class Reference:
    """Plays by PettingZoo's own loop, and says what each turn must show."""

    def __init__(self, env: Any, seed: int) -> None:
        self.env = env
        env.reset(seed=seed)
        self.told: set[str] = set()

    def shown(self) -> tuple[int, Any, float, int]:
        """Returns whose turn it is, and its observation, reward and flags."""
        agent = self.env.agent_selection
        seen, reward, ended, cut, _ = self.env.last()
        flags = ended * TERMINATED + cut * TRUNCATED if agent in self.told else DEAD
        paid = float(reward) if agent in self.told else 0.0
        self.told.add(agent)
        return self.env.possible_agents.index(agent), seen, paid, flags

    def act(self, action: int) -> None:
        self.env.step(None if self.has_ended() else action)
        while self.env.agents and self.env.agent_selection not in self.told and self.has_ended():
            self.env.step(None)  # it had no turn, so there is nothing to tell
        if not self.env.agents:
            self.env.reset()
            self.told.clear()

    def has_ended(self) -> bool:
        _, _, ended, cut, _ = self.env.last()
        return bool(ended or cut)


@pytest.mark.parametrize("kind", WAYS)
def test_turns_are_shown_as_the_environment_tells_them(kind: Any) -> None:
    references = [Reference(Nim(), 5 + 2 * number) for number in range(3)]
    met: set[tuple[int, int]] = set()

    async def story(turns: Turns) -> None:
        dice, frame = np.random.default_rng(3), turns.frame
        before = [0] * 3
        for step in range(60):
            for number, reference in enumerate(references):
                group = await turns.turn(range(2 * number, 2 * number + 2))
                place, seen, paid, flags = reference.shown()
                assert group == 2 * number + place
                np.testing.assert_array_equal(frame.obs["obs"][group], seen)
                if step:  # what begins is shown without flags
                    assert (frame.reward[group], frame.flags[group]) == (paid, flags)
                met.add((before[number], int(frame.flags[group])))
                before[number] = int(frame.flags[group])
                action = int(dice.integers(0, 3))
                turns.stepper.send(group, np.array([action]))
                reference.act(action)
        assert turns.stepper.failures() == []

    play(kind(spec_of(NIM, envs=3)), story)
    assert met >= {(0, 0), (0, TERMINATED), (TERMINATED, TERMINATED), (TERMINATED, DEAD), (DEAD, 0)}


def test_metrics_are_of_the_agent_whose_turn_it_is() -> None:
    async def story(turns: Turns) -> None:
        env, told = Nim(), set()
        env.reset(seed=5)
        assert turns.frame.metrics is not None
        for _ in range(12):
            group = await turns.turn(range(2))
            *_, info = env.last()
            first = env.agent_selection not in told
            told.add(env.agent_selection)
            right = turns.frame.metrics[group, 0]
            assert np.isnan(right) if first else right == info["right"]
            if env._won:
                break
            turns.stepper.send(group, np.array([0]))
            env.step(0)

    play(WAYS[0](spec_of(NIM)), story)


@pytest.mark.parametrize("stepping", ["auto", "inline", "threads"])
def test_each_agent_is_a_part_of_its_unroll(stepping: str) -> None:
    actor = ActorConfig(groups=2, stepping=stepping)  # type: ignore[arg-type]
    stepper = make_stepper(actor, NIM, envs=6, seed=1)
    frame = stepper.frame
    assert (frame.groups, frame.envs, frame.parts, frame.turns) == (12, 1, 6, 2)
    stepper.close()
    with pytest.raises(EnvError, match=r"unroll.envs = 5: each of the 2 agents .* set it to 2"):
        make_stepper(actor, NIM, envs=5, seed=1)


class Broken(Nim):
    """Breaks one rule at the second step of its first episode."""

    broken = False

    def __init__(self, fault: str) -> None:
        super().__init__()
        self._fault, self._steps = fault, 0

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        super().reset(seed, options)
        self._left = 9

    def step(self, action: int | None) -> None:
        self._steps += 1
        gone = self.agent_selection
        super().step(action)
        if Broken.broken or self._steps < 2:
            return
        match self._fault:
            case "stranger":
                self.agent_selection = "nobody"
            case "absent":
                self.agents.remove(self.agent_selection)
            case "unheard":
                self.agents = []
            case "kept" if action is None:
                self.agents.append(gone)
                self.agent_selection = gone
            case "raised":
                Broken.broken = True
                raise RuntimeError("raised")
        Broken.broken = self._fault != "kept" or action is None


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("stranger", "nobody is not among the possible_agents ['first', 'second']"),
        ("absent", "first has a turn, and is not among the agents"),
        ("unheard", "the episode is over, and first, second had no turn to hear of it"),
        ("kept", "second has ended, and is still among the agents"),
        ("raised", "RuntimeError: raised"),
    ],
)
def test_one_that_breaks_a_rule_is_made_again(fault: str, words: str) -> None:
    Broken.broken = False

    async def story(turns: Turns) -> None:
        failures: list[EnvFailure] = []
        shown: list[int] = []
        while len(shown) < 40 and not failures:
            group = await turns.turn(range(2))
            failures += turns.stepper.failures()
            shown.append(group)
            turns.stepper.send(group, np.array([2]))
        (failure,) = failures
        assert words in failure.text and failure.env == 0 and failure.where == "step"
        # The first agent begins again, and what it had done before counts for nothing.
        assert turns.frame.flags[group] == DEAD and turns.frame.reward[group] == 0
        assert turns.frame.obs["obs"][group].argmax() == 8
        following = [await turns.turn(range(2))]
        assert following == [1 - group] and turns.frame.flags[following[0]] == DEAD

    play(WAYS[0](spec_of(of("Broken", fault=fault))), story)


class Empty(Nim):
    """Begins without anybody."""

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        super().reset(seed, options)
        self.agents = []


class Short(Nim):
    """Has ended before anybody has acted."""

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        super().reset(seed, options)
        self._won = "first"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Empty", "an episode begins, and agents is empty"),
        ("Short", "an episode ends before anybody has acted"),
    ],
)
def test_an_episode_that_cannot_be_played_never_begins(name: str, words: str) -> None:
    with pytest.raises(EnvError, match=words):
        play(WAYS[0](spec_of(of(name))), lambda _: pytest.fail("it began"))


def test_where_one_agent_is_needed_several_are_refused() -> None:
    with pytest.raises(EnvError, match="has 2 agents; one is needed"):
        make_env(NIM)


class Perfect:
    """Makes every move that is right."""

    memory, previous = 0, False

    def act(self, seen: Any, memory: None, *, greedy: bool) -> tuple[Any, Any, None]:
        del memory, greedy
        left = seen["obs"].argmax(axis=1) + 1
        return np.maximum(left % 4, 1) - 1, np.zeros(len(left), np.float32), None


def test_an_evaluation_plays_turns() -> None:
    how = EvaluateConfig(episodes=6, envs=4)
    scores = evaluate(cast(PolicyLike, Perfect()), NIM, probe(NIM), how)
    lengths, env = [], Nim()
    for seed in range(how.seed, how.seed + 6):
        env.reset(seed=seed)
        moves = 0
        while not env._won:
            env.step(max(env._left % 4, 1) - 1)
            moves += 1
        lengths.append(moves)
    assert scores.lengths == lengths
    # What one wins the other loses; who had no turn does not count.
    assert scores.returns == [1.0 if moves == 1 else 0.0 for moves in lengths]
    assert set(scores.metrics["right"]) == {1.0}


def test_pettingzoo_s_own_are_recognised() -> None:
    if find_spec("pettingzoo") is None:
        missing("pettingzoo is not installed: pip install 'pettingzoo[classic]'")
    named = {"env_type": "aec", "id": "classic/tictactoe_v3"}
    config = EnvConfig("pettingzoo:make", named, mask="action_mask")
    stepper = make_stepper(ActorConfig(groups=1, stepping="inline"), config, envs=2, seed=1)
    reference = Reference(make_any(config), 1)

    async def story(turns: Turns) -> None:
        dice, frame = np.random.default_rng(3), turns.frame
        for _ in range(80):
            group = await turns.turn(range(2))
            place, seen, paid, flags = reference.shown()
            assert group == place and frame.reward[group] == paid
            assert (frame.flags[group] | DEAD) == (flags | DEAD)
            np.testing.assert_array_equal(frame.obs["observation"][group], seen["observation"])
            allowed = np.flatnonzero(seen["action_mask"])
            action = int(dice.choice(allowed)) if len(allowed) else 0
            turns.stepper.send(group, np.array([action]))
            reference.act(action)
        assert turns.stepper.failures() == []

    play(stepper, story)


class Dice(Nim):
    """Shows what the process's own dice give, and takes its process down in the first step of its
    first life."""

    def __init__(self, folder: str, column: int) -> None:
        super().__init__()
        self._lived = Path(folder) / f"lived-{column}"

    def last(self) -> tuple[Any, ...]:
        seen, *rest = super().last()
        seen[0] = random.random()
        return seen, *rest

    def step(self, action: int | None) -> None:
        if not self._lived.exists():
            self._lived.touch()
            os._exit(3)
        super().step(action)


@pytest.mark.processes
def test_a_second_life_of_a_process_draws_other_numbers(tmp_path: Path) -> None:
    config = of("Dice", folder=str(tmp_path), column="{column}")
    shown: dict[int, list[float]] = {0: [], 1: []}

    async def story(turns: Turns) -> None:
        for _ in range(2):
            for number, first in shown.items():
                group = await turns.turn(range(2 * number, 2 * number + 2))
                first.append(float(turns.frame.obs["obs"][group][0]))
                turns.stepper.send(group, np.array([0]))
        failures: list[EnvFailure] = []
        while len(failures) < 2:
            failures += turns.stepper.failures()
            await asyncio.sleep(0.01)
        assert sorted(failure.env for failure in failures) == [0, 2]

    play(ProcessStepper(spec_of(config, envs=2)), story)
    drawn = [number for lives in shown.values() for number in lives]
    assert len(set(drawn)) == 4, drawn
