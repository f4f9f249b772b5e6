"""Agents whose policies are drawn for each episode, against who they are in the environment."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.actors.envs.agents.drawn_seats import draw_seats
from headrace.actors.envs.agents.parallel import Play
from headrace.actors.envs.agents.turns import TurnsPlay
from headrace.broker.errors import UserError

SEATS = {"red": 2, "blue": 1, "spare": 1}


class Named:
    """Shows each agent its number and the step, and pays it its number and its action; the last
    agent comes a step late, and the first leaves a step early."""

    def __init__(self, agents: int = 3) -> None:
        self.possible_agents = [f"agent_{number}" for number in range(agents)]
        self.agents: list[str] = []
        self.closed = False

    def observation_space(self, agent: str) -> Box:
        del agent
        return Box(-np.inf, np.inf, (2,), np.float32)

    def action_space(self, agent: str) -> Discrete:
        del agent
        return Discrete(10)

    def reset(self, seed: int | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        del seed
        self.step_number, self.agents = 0, self.possible_agents[:-1]
        return self._seen(), {}

    def step(self, actions: dict[str, int]) -> tuple[dict[str, Any], ...]:
        assert actions.keys() == {*self.agents}
        self.step_number += 1
        paid = {agent: 10 * self._number(agent) + action for agent, action in actions.items()}
        over = self.step_number == 4
        early = self.possible_agents[:1] if self.step_number == 3 else []
        ended = {agent: over or agent in early for agent in actions}
        if self.step_number == 1:
            self.agents = [*self.possible_agents]
        seen = self._seen()
        self.agents = [a for a in self.agents if not ended.get(a)]
        return seen, paid, ended, dict.fromkeys(actions, False), {a: {"me": a} for a in actions}

    def close(self) -> None:
        self.closed = True

    def _number(self, agent: str) -> int:
        return self.possible_agents.index(agent)

    def _seen(self) -> dict[str, Any]:
        return {a: np.array([self._number(a), self.step_number], np.float32) for a in self.agents}


class Round(Named):
    """Gives each agent one turn after the other, twice."""

    @property
    def agent_selection(self) -> str:
        return self.possible_agents[self.step_number % len(self.possible_agents)]

    def reset(self, seed: int | None = None) -> Any:
        super().reset(seed)
        self.agents = [*self.possible_agents]
        self._last = dict.fromkeys(self.agents, 0.0)

    def last(self) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        agent = self.agent_selection
        over = self.step_number >= 2 * len(self.possible_agents)
        return self._seen()[agent], self._last[agent], over, False, {"me": agent}

    def step(self, action: Any) -> Any:
        agent = self.agent_selection
        if action is None:
            self.agents.remove(agent)
        else:
            self._last[agent] = 10 * self._number(agent) + action
        self.step_number += 1


def played(play: Any, seed: int | None, action: int = 3) -> dict[str, int]:
    """Plays an episode; returns the agent's number by seat, after it has checked that every seat
    saw, was paid and was told what this agent was."""
    who: dict[str, int] = {}
    for seat, seen in play.reset(seed).items():
        who[seat] = int(seen[0])
    while not play.over:
        news, came = play.step(dict.fromkeys(play.acting, action))
        for seat, seen in came.items():
            assert who.setdefault(seat, int(seen[0])) == int(seen[0])
        for seat, told in news.items():
            assert int(told.observation[0]) == who[seat]
            assert told.reward == 10 * who[seat] + action
            assert told.info["me"] == f"agent_{who[seat]}"
    return who


KINDS = [pytest.param(Named, Play, id="parallel"), pytest.param(Round, TurnsPlay, id="turns")]


@pytest.mark.parametrize(("env", "play"), KINDS)
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), agents=st.integers(2, 4))
def test_a_seat_is_one_agent_for_an_episode_and_another_in_the_next(
    env: Any, play: Any, seed: int, agents: int
) -> None:
    shown = play(draw_seats(env(agents), SEATS))
    assert shown.agents == ("red_0", "red_1", "blue_0", "spare_0")
    drawn = [played(shown, seed if number == 0 else None) for number in range(20)]
    for who in drawn:
        assert sorted(who.values()) == [*range(agents)]
    assert len({tuple(sorted(who.items())) for who in drawn}) > 1
    again = play(draw_seats(env(agents), SEATS))
    assert drawn == [played(again, seed if number == 0 else None) for number in range(20)]


def test_all_seats_are_alike_in_the_long_run() -> None:
    shown = Play(draw_seats(Named(), SEATS))
    count = Counter(
        pair for number in range(2000) for pair in played(shown, 5 if not number else None).items()
    )
    assert len(count) == 4 * 3
    assert min(count.values()) > 2000 / 4 * 0.8


def by_turns(agent: str, episode: int, dice: np.random.Generator) -> str:
    assert 0 <= dice.random() < 1
    return "blue" if agent == f"agent_{episode % 3}" else "red"


def all_red(agent: str, episode: int, dice: np.random.Generator) -> str:
    del dice
    return "red" if episode == 0 or agent == "agent_0" else "green"


def crowds(agent: str, episode: int, dice: np.random.Generator) -> str:
    del agent, episode, dice
    return "blue"


def fails(agent: str, episode: int, dice: np.random.Generator) -> str:
    del agent, episode, dice
    raise KeyError("wolf")


@pytest.mark.parametrize(("env", "play"), KINDS)
def test_a_rule_says_who_plays_whom(env: Any, play: Any) -> None:
    shown = play(draw_seats(env(), SEATS, f"{__name__}:by_turns"))
    for episode in range(6):
        who = played(shown, 0 if not episode else None)
        assert who["blue_0"] == episode % 3
        assert set(who) == {"red_0", "red_1", "blue_0"}


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ("crowds", "'blue' play more than its 1 seats in episode 0; give it more"),
        ("all_red", "lets 'green' play agent_1; there are ['red', 'blue', 'spare']"),
        ("fails", "failed, mend it: KeyError: 'wolf'"),
        ("absent", "cannot be imported"),
    ],
)
def test_a_wrong_rule_is_told_in_one_line(rule: str, told: str) -> None:
    with pytest.raises((UserError, ValueError), match=r"draw_seats\.rule") as error:
        shown = Play(draw_seats(Named(2), SEATS, f"{__name__}:{rule}"))
        played(shown, 0)
        played(shown, None)
    assert told in str(error.value)
    assert "\n" not in str(error.value)


class Mixed(Named):
    def action_space(self, agent: str) -> Discrete:
        return Discrete(10 + self._number(agent))


@pytest.mark.parametrize(
    ("env", "seats", "told"),
    [
        (Named(), {"red": 2}, "2 seats, and 3 agents"),
        (Named(), {}, "names of policies"),
        (Named(), {"red": 0, "blue": 4}, "names of policies"),
        (Named(), {"red": "3"}, "names of policies"),
        (Named(), {"red": 5000}, "4096 in all"),
        (Mixed(), SEATS, "agent_1 has other spaces than agent_0"),
        (object(), SEATS, "this has one"),
    ],
)
def test_seats_that_cannot_be(env: Any, seats: Any, told: str) -> None:
    with pytest.raises(UserError, match=told):
        draw_seats(env, seats)


def test_everything_else_is_the_environments_own() -> None:
    env = Named()
    shown = draw_seats(env, SEATS)
    shown.close()
    assert env.closed
    assert not hasattr(shown, "last")
