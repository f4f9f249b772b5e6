"""Agents that skip steps, against what each lived through from one of its turns to the next."""

import asyncio
import random
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.actors.config import EnvConfig, Stepping
from headrace.actors.envs.agents import skipping
from headrace.actors.envs.agents.skipping import Skipping
from headrace.actors.envs.agents.turns import TurnsPlay
from headrace.learner.spaces import TERMINATED, TRUNCATED
from tests.actors.test_turns import CHOICES, Step, lived_by, sampled


class Sparse:
    """Draws who sees something, who ends and who comes; the same draws lead to the same story. All
    are paid in every step."""

    def __init__(self, agents: int, at: int = 0, seed: int = 0, seldom: float = 0.5) -> None:
        self.possible_agents = [f"agent_{number}" for number in range(agents)]
        self.agents: list[str] = []
        self.lived: dict[str, list[Step]] = defaultdict(list)
        self._dice, self._at, self._shown = random.Random(f"{seed} {at}"), at, 0
        self._seldom = seldom  # the chance to be shown something
        ALL[at] = self

    def observation_space(self, agent: str) -> Box:
        del agent
        return Box(-np.inf, np.inf, (4,), np.float32)

    def action_space(self, agent: str) -> Discrete:
        del agent
        return Discrete(CHOICES)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        del seed, options
        self.agents = [*self.possible_agents]
        self._left = self._dice.randint(1, 25)
        self._turns = dict.fromkeys(self.possible_agents, 0)
        self._newest: dict[str, tuple[tuple[float, ...], int]] = {}  # what it saw, what it did
        self._paid = dict.fromkeys(self.possible_agents, 0.0)
        self._now: dict[str, tuple[float, ...]] = {}  # of those that act next
        return self._look(self.agents[:1]), {}

    def step(self, actions: dict[str, int]) -> tuple[Any, ...]:
        assert actions.keys() == self._now.keys()
        for agent, action in actions.items():
            self._newest[agent], self._paid[agent] = (self._now[agent], action), 0.0
            self._turns[agent] += 1
        self._now, self._left = {}, self._left - 1
        rewards = {agent: float(self._dice.randint(-3, 3)) for agent in self.agents}
        for agent, reward in rewards.items():
            self._paid[agent] += reward
        ends = {
            agent: self._dice.choice([TERMINATED, TRUNCATED])
            for agent in self.agents
            if self._left <= 0 or self._dice.random() < 0.05
        }
        came = [
            agent
            for agent in self.possible_agents
            if agent not in self.agents and self._left > 0 and self._dice.random() < 0.2
        ]
        shown = [a for a in self.agents if self._dice.random() < self._seldom or a in ends]
        seen = self._look([*shown, *came])
        for agent, flags in ends.items():
            then = self._now.pop(agent)
            if agent in self._newest:
                self._lived(agent, flags, then)
            self._turns[agent] = 0
            self._newest.pop(agent, None)
        for agent in (*shown, *came):
            if agent not in ends and agent in self._newest:
                self._lived(agent, 0, self._now[agent])
        self.agents = [a for a in (*self.agents, *came) if a not in ends]
        ended = {agent: flags == TERMINATED for agent, flags in ends.items()}
        cut = {agent: flags == TRUNCATED for agent, flags in ends.items()}
        return seen, rewards, ended, cut, {}

    def _lived(self, agent: str, flags: int, then: tuple[float, ...]) -> None:
        self.lived[agent].append(Step(*self._newest[agent], self._paid[agent], flags, then))

    def _look(self, agents: list[str]) -> dict[str, Any]:
        for agent in agents:
            self._shown += 1
            number = self.possible_agents.index(agent)
            self._now[agent] = self._at, number, self._turns[agent], self._shown
        return {agent: np.array(self._now[agent], np.float32) for agent in agents}

    def close(self) -> None:
        pass


ALL: dict[int, Sparse] = {}  # by the column of its first agent


@pytest.mark.parametrize("stepping", ["inline", "threads"])
@given(
    seed=st.integers(0, 1 << 30),
    agents=st.integers(1, 4),
    wide=st.integers(1, 3),
    length=st.integers(1, 6),
    max_lag=st.sampled_from([0, 1000]),
)
@settings(max_examples=40, deadline=None)
def test_each_column_holds_what_its_agent_lived_through(
    stepping: Stepping, seed: int, agents: int, wide: int, length: int, max_lag: int
) -> None:
    """A step lasts from one of its turns to the next, whoever acts between, and pays what came
    meanwhile."""
    ALL.clear()
    config = EnvConfig(
        f"{__name__}:Sparse",
        {"agents": agents, "seed": seed, "at": "{column}"},
        wrappers=({"id": "headrace.actors.envs.agents.skipping:Skipping"},),
    )
    end = asyncio.run(
        sampled(
            config, stepping, length=length, envs=agents * wide, groups=1, count=8, max_lag=max_lag
        )
    )
    (unrolls,) = end.unrolls
    for column in range(agents * wide):
        env, agent = divmod(column, agents)
        told = lived_by(unrolls, column)
        lived = ALL[env * agents].lived[f"agent_{agent}"]
        assert told == lived[: len(told)]
        assert len(told) >= len(lived) - length - 1


def test_who_ends_while_it_skips_hears_of_it_with_what_it_saw_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env = Sparse(2, seldom=1.0)
    play = TurnsPlay(Skipping(env))
    assert play.reset(0).keys() == {"agent_0"}
    later = np.array([0, 1, 0, 2], np.float32)
    told: list[Any] = [
        ({}, {"agent_0": 1.5, "agent_1": 9.0}, {"agent_0": True}, {}, {}),
        ({"agent_1": later}, {"agent_1": 9.0}, {}, {}, {}),
    ]

    def step(actions: dict[str, int]) -> Any:
        env.agents = ["agent_1"]
        assert actions == ({"agent_0": 0} if len(told) == 2 else {})
        return told.pop(0)

    monkeypatch.setattr(env, "step", step)
    news, came = play.step({"agent_0": 0})
    assert news["agent_0"].observation.tolist() == [0, 0, 0, 1]
    assert (news["agent_0"].reward, news["agent_0"].flags) == (1.5, TERMINATED)
    assert came.keys() == {"agent_1"} and play.acting == ("agent_1",)


def test_an_environment_that_shows_nothing_more_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skipping, "_MOST_IDLE", 50)
    env = Sparse(1, seldom=0.0, seed=2)
    monkeypatch.setattr(env._dice, "random", lambda: 0.9)
    play = TurnsPlay(Skipping(env))
    play.reset(0)
    env._left = 1000
    with pytest.raises(ValueError, match="nobody has seen anything for 50 steps"):
        play.step({"agent_0": 0})


@pytest.mark.parametrize(("stranger", "words"), [("nobody", "not"), ("agent_1", "and is not")])
def test_who_does_not_play_is_shown_nothing(
    monkeypatch: pytest.MonkeyPatch, stranger: str, words: str
) -> None:
    env = Sparse(2)
    shows: Any = env.reset

    def reset(**how: Any) -> Any:
        seen, infos = shows(**how)
        env.agents = ["agent_0"]
        return {**seen, stranger: seen["agent_0"]}, infos

    monkeypatch.setattr(env, "reset", reset)
    with pytest.raises(ValueError, match=f"{stranger} is .*{words} among"):
        Skipping(env).reset(0)
