"""Environments of several agents that act at the same time, against the environments themselves."""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, cast

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from headrace.actors.config import ActorConfig, EnvConfig, EvaluateConfig
from headrace.actors.envs.convert import EnvError
from headrace.actors.envs.make import make_env, probe
from headrace.actors.envs.toys.several_agents import Seats, Shifts
from headrace.actors.evaluator import play as evaluate
from headrace.actors.stepping.choose import make_stepper
from headrace.actors.stepping.stepper import EnvFailure, EnvsSpec
from headrace.broker.errors import UserError
from headrace.learner.spaces import DEAD, TERMINATED, TRUNCATED
from tests.actors.stepping.test_stepping import WAYS, Play, play
from tests.needs import missing

TOYS = "headrace.actors.envs.toys.several_agents"
SHIFTS = EnvConfig(f"{TOYS}:Shifts", {"agents": 4})
SEATS = EnvConfig(f"{TOYS}:Seats", {"agents": 3}, metrics=("taken",))


def of(name: str, **changes: Any) -> EnvConfig:
    """A class of this file."""
    return EnvConfig(f"{__name__}:{name}", changes)


class Reference:
    """Plays by PettingZoo's own loop, and says what each column must show."""

    def __init__(self, seed: int) -> None:
        self.env = Shifts(4)
        self.seen, _ = self.env.reset(seed=seed)
        self.rows = {agent: self.seen.get(agent) for agent in self.env.possible_agents}

    def step(self, actions: Mapping[str, int]) -> dict[str, tuple[float, int]]:
        """Returns reward and flags of each; `rows` are what each saw last."""
        names = self.env.possible_agents
        shown = dict.fromkeys(names, (0.0, DEAD))
        if not self.env.agents:
            self.seen, _ = self.env.reset()
            self.rows = dict.fromkeys(names, None) | self.seen
            return shown
        played = [*self.env.agents]
        given = {agent: actions[agent] for agent in played}
        self.seen, paid, ended, cut, _ = self.env.step(given)
        self.rows |= self.seen
        for agent in played:
            flags = (TERMINATED if ended[agent] else 0) | (TRUNCATED if cut[agent] else 0)
            shown[agent] = float(np.float32(paid[agent])), flags
        return shown


@pytest.mark.parametrize("kind", WAYS)
def test_each_column_is_an_agent_as_the_environment_tells_it(kind: Any) -> None:
    spec = EnvsSpec(SHIFTS, probe(SHIFTS), groups=3, envs=4, seed=5, agents=4)
    references = [Reference(5 + 4 * group) for group in range(3)]
    met: set[tuple[int, int]] = set()

    def check(playing: Play, shown: list[dict[str, tuple[float, int]]]) -> None:
        frame = playing.frame
        for group, (reference, told) in enumerate(zip(references, shown, strict=True)):
            for place, agent in enumerate(reference.env.possible_agents, start=4 * group):
                row = reference.rows[agent]
                if row is not None:
                    np.testing.assert_array_equal(frame.obs["obs"][place], row)
                if told:
                    assert (frame.reward[place], frame.flags[place]) == told[agent]

    async def story(playing: Play) -> None:
        check(playing, [{}, {}, {}])
        dice, before = np.random.default_rng(3), np.zeros(12, np.uint8)
        for _ in range(120):
            actions = dice.integers(0, 3, 12)
            await playing.step(actions)
            names = references[0].env.possible_agents
            rows = actions.reshape(3, 4).tolist()
            check(
                playing,
                [
                    r.step(dict(zip(names, row, strict=True)))
                    for r, row in zip(references, rows, strict=True)
                ],
            )
            met.update(zip(before.tolist(), playing.frame.flags.tolist(), strict=True))
            before = playing.frame.flags.copy()
        assert playing.stepper.failures() == []

    play(kind(spec), story)
    # Whoever ended waits as long as the others play; whoever comes late was dead until then.
    assert met >= {
        (0, 0),
        (0, TERMINATED),
        (0, TRUNCATED),
        (TERMINATED, DEAD),
        (DEAD, DEAD),
        (DEAD, 0),
    }


def test_metrics_are_each_agent_s_own() -> None:
    spec = EnvsSpec(SEATS, probe(SEATS), groups=1, envs=3, seed=5, agents=3)

    async def story(playing: Play) -> None:
        assert playing.frame.metrics is not None
        for step in range(1, 12):
            await playing.step(np.array([0, 1, 1]))
            taken = playing.frame.metrics[:, 0]
            assert (
                np.isnan(taken).all()
                if step == 11
                else (taken == np.float64(np.float32(2 / 3))).all()
            )

    play(WAYS[0](spec), story)


@pytest.mark.parametrize("stepping", ["auto", "inline", "threads"])
def test_an_unroll_holds_whole_environments(stepping: str) -> None:
    actor = ActorConfig(groups=2, stepping=stepping)  # type: ignore[arg-type]
    stepper = make_stepper(actor, SHIFTS, envs=8, seed=1)
    assert (stepper.frame.groups, stepper.frame.envs, stepper.frame.parts) == (4, 4, 2)
    stepper.close()
    with pytest.raises(EnvError, match=r"unroll.envs = 6: each of the 4 agents .* set it to 4"):
        make_stepper(actor, SHIFTS, envs=6, seed=1)


class Broken(Seats):
    """Breaks one rule at the third step of its first episode."""

    broken = False

    def __init__(self, fault: str) -> None:
        super().__init__(3)
        self._fault = fault

    def step(self, actions: Any) -> Any:
        seen, paid, ended, cut, infos = super().step(actions)
        if self._step == 3 and not Broken.broken:
            Broken.broken = True
            if self._fault == "stranger":
                seen["nobody"] = seen["agent_0"]
            elif self._fault == "dropped":
                self.agents = ["agent_0", "agent_2"]
            elif self._fault == "kept":
                ended["agent_1"] = True
            elif self._fault == "silent":
                del seen["agent_1"]
            else:
                raise RuntimeError(self._fault)
        return seen, paid, ended, cut, infos


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("kept", "agent_1 has ended, and is still among the agents"),
        ("stranger", "nobody is not among the possible_agents"),
        ("dropped", "agent_1 is no longer among the agents, and has not ended"),
        ("silent", "agent_1 played, and the step says nothing of it"),
        ("raised", "RuntimeError: raised"),
    ],
)
def test_one_that_breaks_a_rule_is_made_again(fault: str, words: str) -> None:
    Broken.broken = False
    config = of("Broken", fault=fault)
    spec = EnvsSpec(config, probe(config), groups=2, envs=3, seed=5, agents=3)
    failures: list[EnvFailure] = []
    flags: list[list[int]] = []

    async def story(playing: Play) -> None:
        for _ in range(5):
            await playing.step(np.zeros(6, np.int64))
            failures.extend(playing.stepper.failures())
            flags.append(playing.frame.flags.tolist())

    play(WAYS[0](spec), story)
    assert [(one.env, one.where, one.steps) for one in failures] == [(0, "step", 2)]
    assert words in failures[0].text
    assert flags == [[0] * 6] * 2 + [[DEAD] * 3 + [0] * 3] + [[0] * 6] * 2


class Uneven(Seats):
    """Shows its second agent more than the first."""

    def observation_space(self, agent: str) -> Box:
        return (
            Box(0.0, 1.0, (9,), np.float32)
            if agent == "agent_1"
            else super().observation_space(agent)
        )


class Nobody(Seats):
    """Has no agents."""

    def __init__(self) -> None:
        super().__init__(2)
        self.possible_agents = []


class Deaf(Seats):
    """Shows its second agent nothing."""

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        seen, infos = super().reset(seed, options)
        return {"agent_0": seen["agent_0"]}, infos


class Empty(Seats):
    """Begins without anybody."""

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        told = super().reset(seed, options)
        self.agents = []
        return told


class Growing(Seats):
    """Has an agent more each time that it is made."""

    made = 1

    def __init__(self) -> None:
        Growing.made += 1
        super().__init__(Growing.made)

    def observation_space(self, agent: str) -> Box:
        del agent
        return Box(0.0, 1.0, (1,), np.float32)

    def action_space(self, agent: str) -> Discrete:
        del agent
        return Discrete(2)


def test_the_number_of_agents_stays_as_it_was() -> None:
    config = of("Growing")
    spec = EnvsSpec(config, probe(config), groups=1, envs=2, seed=5, agents=2)
    with pytest.raises(EnvError, match="changes its agents: first 2, then 3"):
        play(WAYS[0](spec), lambda _: pytest.fail("it began"))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Uneven", "agent_1 has other spaces than agent_0, and one policy plays them all; give"),
        ("Nobody", "possible_agents is empty; it must name all that may play"),
    ],
)
def test_what_cannot_be_played_is_said_in_a_line(name: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        probe(of(name))
    assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Empty", "an episode begins, and agents is empty"),
        ("Deaf", "agent_1 is among the agents, and is shown nothing"),
    ],
)
def test_an_episode_that_cannot_be_played_never_begins(name: str, words: str) -> None:
    config = of(name)
    spec = EnvsSpec(config, probe(config), groups=1, envs=2, seed=5, agents=2)
    with pytest.raises(EnvError, match=words):
        play(WAYS[0](spec), lambda _: pytest.fail("it began"))


def test_where_one_agent_is_needed_several_are_refused() -> None:
    with pytest.raises(EnvError, match="has 3 agents; one is needed"):
        make_env(SEATS)


class Scripted:
    """Takes its own seat, or what is shown."""

    memory, previous = 0, False

    def act(self, seen: Mapping[str, Any], memory: None, *, greedy: bool) -> tuple[Any, Any, None]:
        del memory, greedy
        chosen = seen["obs"][:, :3].argmax(axis=1)
        return chosen, np.zeros(len(chosen), np.float32), None


@pytest.mark.parametrize("config", [SEATS, SHIFTS])
def test_a_score_is_what_each_agent_got_on_average(config: EnvConfig) -> None:
    how = EvaluateConfig(episodes=6, envs=4, seed=50)
    policy: Any = Scripted()
    scores = evaluate(policy, config, probe(config), how)
    assert scores.lengths == [10] * 6
    if config is SEATS:
        assert scores.returns == [10.0] * 6
        assert scores.metrics["taken"] == [1.0] * 18
    else:  # as long as each was there
        for episode, returned in enumerate(scores.returns):
            env, paid, came = Shifts(4), 0.0, set[str]()
            seen, _ = env.reset(seed=50 + episode)
            while env.agents:
                came.update(env.agents)
                seen, rewards, *_ = env.step({a: int(seen[a].argmax()) for a in env.agents})
                paid += sum(rewards.values())
            assert returned == pytest.approx(paid / len(came)) == pytest.approx(1.0)


def test_an_evaluation_of_one_that_never_empties_its_agents_ends() -> None:
    Broken.broken = False
    config = of("Broken", fault="kept")
    with pytest.raises(EnvError, match="agent_1 has ended, and is still among the agents"):
        evaluate(cast(Any, Scripted()), config, probe(config), EvaluateConfig(episodes=1))


def test_pettingzoo_s_own_are_recognised() -> None:
    if find_spec("pettingzoo") is None:
        missing("pettingzoo is not installed: pip install pettingzoo")
    named = {"env_type": "parallel", "id": "classic/rps-v2", "max_cycles": 5}
    config = EnvConfig("pettingzoo:make", named)
    stepper = make_stepper(ActorConfig(stepping="inline"), config, envs=4, seed=1)
    assert stepper.spaces.action.categories == (3,)

    async def story(playing: Play) -> None:
        flags, rewards = [], []
        for _ in range(7):
            await playing.step(np.array([0, 1, 2, 2]))
            flags.append(playing.frame.flags.tolist())
            rewards.append(playing.frame.reward.tolist())
        assert flags == [[0] * 4] * 4 + [[TRUNCATED] * 4, [DEAD] * 4, [0] * 4]
        assert rewards[0] == [-1.0, 1.0, 0.0, 0.0]  # paper beats rock

    play(stepper, story)
