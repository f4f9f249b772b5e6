"""Draws anew, for each episode, which policy plays which agent."""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import numpy as np

from headrace.actors.envs.agents.kinds import has_agents, takes_turns
from headrace.broker.errors import UserError
from headrace.learner.models import named_code

# Names the policy that plays an agent in this episode, which counts from 0; dice to draw with.
Rule: TypeAlias = Callable[[str, int, np.random.Generator], str]

_MOST_SEATS: Final = 4096


def draw_seats(env: Any, seats: Mapping[str, int], rule: str = "") -> Any:
    """Shows an environment by the seats of policies in place of its agents: NAME_0, NAME_1, .. for
    each name in `seats`, which says how many a policy has. Who sits where is drawn when an episode
    begins: at random, or by `rule`, module:function. A seat that stays empty does not play."""
    if not has_agents(env):
        raise UserError("draw_seats wraps an environment of several agents, and this has one")
    return (_Turns if takes_turns(env) else _Parallel)(env, seats, rule)


class _Seated:
    """Has seats in place of agents."""

    def __init__(self, env: Any, seats: Mapping[str, int], rule: str) -> None:
        _check(env, seats)
        self.env = env
        self._seats = {name: [f"{name}_{n}" for n in range(many)] for name, many in seats.items()}
        self.possible_agents = [seat for own in self._seats.values() for seat in own]
        self._rule_name = rule
        self._rule: Rule | None = named_code.function("draw_seats.rule", rule) if rule else None
        self._dice = np.random.default_rng()
        self._episode = -1
        self._agents: dict[str, str] = {}  # by seat
        self._seat_of: dict[str, str] = {}  # by agent

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    @property
    def agents(self) -> list[str]:
        """Returns the seats of those that play now."""
        return [self._seat(agent) for agent in self.env.agents]

    def observation_space(self, _seat: str) -> Any:
        return self.env.observation_space(self.env.possible_agents[0])

    def action_space(self, _seat: str) -> Any:
        return self.env.action_space(self.env.possible_agents[0])

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        """Seats all, and begins an episode."""
        if seed is not None:
            self._dice = np.random.default_rng([seed, 1])
        self._episode += 1
        self._draw()
        # PettingZoo's older ones, and those of a user's own, may know no options.
        told = {} if options is None else {"options": options}
        return self.env.reset(seed=seed, **told)

    def _draw(self) -> None:
        free = {name: [*own] for name, own in self._seats.items()}
        if self._rule is None:
            order = self._dice.permutation(len(self.possible_agents))
            drawn = [self.possible_agents[at] for at in order]
        else:
            drawn = [self._by_rule(agent, free) for agent in self.env.possible_agents]
        self._seat_of = dict(zip(self.env.possible_agents, drawn, strict=False))
        self._agents = {seat: agent for agent, seat in self._seat_of.items()}

    def _by_rule(self, agent: str, free: dict[str, list[str]]) -> str:
        assert self._rule is not None
        said = f'draw_seats.rule = "{self._rule_name}"'
        try:
            name = self._rule(agent, self._episode, self._dice)
        except Exception as error:
            told = named_code.one_line(error)
            raise UserError(f"{said} failed, mend it: {told}") from error
        if name not in free:
            raise UserError(f"{said} lets {name!r} play {agent}; there are {[*free]}")
        if not free[name]:
            raise UserError(
                f"{said} lets {name!r} play more than its {len(self._seats[name])} seats in episode"
                f" {self._episode}; give it more"
            )
        return free[name].pop(0)

    def _seat(self, agent: str) -> str:
        """Returns the seat of this agent; of one never announced its name, which is refused."""
        return self._seat_of.get(agent, agent)

    def _by_seat(self, told: Mapping[str, Any]) -> dict[str, Any]:
        return {self._seat(agent): what for agent, what in told.items()}


class _Parallel(_Seated):
    """Is an environment in which all act at the same time."""

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        """Seats all, and begins an episode; returns what they see."""
        return tuple(map(self._by_seat, super().reset(seed, options)))

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        """Steps all that play."""
        given = {self._agents[seat]: action for seat, action in actions.items()}
        return tuple(map(self._by_seat, self.env.step(given)))


class _Turns(_Seated):
    """Is an environment whose agents take turns."""

    @property
    def agent_selection(self) -> str:
        """Returns the seat of the agent whose turn it is."""
        return self._seat(self.env.agent_selection)


def _check(env: Any, seats: Mapping[str, int]) -> None:
    """Raises UserError unless all agents fit into these seats, and any of them into each."""
    wrong = [many for many in seats.values() if not isinstance(many, int) or many < 1]
    if wrong or not 0 < sum(seats.values()) <= _MOST_SEATS:
        raise UserError(
            f"draw_seats.seats = {dict(seats)}: names of policies, and how many agents each may"
            f" play, as {{ red = 2, blue = 2 }}; {_MOST_SEATS} in all at most"
        )
    agents = env.possible_agents
    if sum(seats.values()) < len(agents):
        raise UserError(
            f"draw_seats.seats = {dict(seats)}: {sum(seats.values())} seats, and"
            f" {len(agents)} agents to sit there"
        )
    first = env.observation_space(agents[0]), env.action_space(agents[0])
    for agent in agents[1:]:
        if (env.observation_space(agent), env.action_space(agent)) != first:
            raise UserError(
                f"draw_seats: {agent} has other spaces than {agents[0]}, and any policy may play"
                " either; pad the smaller ones in a wrapper before this one"
            )
