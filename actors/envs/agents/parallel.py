"""Environments in which several agents act at the same time, as PettingZoo's parallel ones do.

Whatever has these attributes is one; PettingZoo need not be installed:

    possible_agents              names of all that may ever play
    agents                       of those that play now; empty = the episode is over
    observation_space(agent), action_space(agent)
    reset(seed=) -> observations, infos
    step(actions) -> observations, rewards, terminations, truncations, infos

All of these are dictionaries by agent. Who plays gives an action and hears of the step; who ended
in it hears of it for the last time, and is no longer among the agents. Who comes in the middle of
an episode, or comes back, is shown an observation; so is everybody who begins one.
"""

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from headrace.broker.errors import UserError
from headrace.learner.spaces import TERMINATED, TRUNCATED

ByAgent = Mapping[str, Any]


class ParallelEnv(Protocol):
    """Is an environment of several agents."""

    possible_agents: list[str]
    agents: list[str]

    def observation_space(self, agent: str) -> Any: ...

    def action_space(self, agent: str) -> Any: ...

    def reset(self, seed: int | None = None) -> tuple[ByAgent, ByAgent]: ...

    def step(self, actions: dict[str, Any]) -> tuple[ByAgent, ByAgent, ByAgent, ByAgent, ByAgent]:
        """Steps all that play at once."""

    def close(self) -> None: ...


class News(NamedTuple):
    """Holds what a step told an agent."""

    observation: Any
    reward: float
    flags: int  # TERMINATED, TRUNCATED: it plays no further
    info: Mapping[str, Any]


def flags_of(ended: object, cut: object) -> int:
    """Returns what the two answers of an environment say, as a step's flags."""
    return (TERMINATED if ended else 0) | (TRUNCATED if cut else 0)


def own_agents(env: Any, patterns: Sequence[str], name: str) -> tuple[str, ...]:
    """Returns those of its agents that the patterns name, none = all; UserError for a pattern that
    names nobody. `name`: of the environment."""
    agents = tuple(env.possible_agents)
    if not agents:
        raise UserError(f"{name}: possible_agents is empty; it must name all that may play")
    for pattern in patterns:
        if not fnmatch.filter(agents, pattern):
            raise UserError(f"{name}: {pattern!r} names none of its agents {[*agents]}")
    own = {agent for pattern in patterns for agent in fnmatch.filter(agents, pattern)}
    return tuple(agent for agent in agents if agent in own or not patterns)


def spaces_of_agents(env: Any, name: str, patterns: Sequence[str] = ()) -> tuple[Any, Any]:
    """Returns the spaces for observations and actions of each of these agents; UserError unless all
    have the same. `name`: of the environment."""
    first, *others = own_agents(env, patterns, name)
    observation, action = env.observation_space(first), env.action_space(first)
    for agent in others:
        if (env.observation_space(agent), env.action_space(agent)) != (observation, action):
            raise UserError(
                f"{name}: {agent} has other spaces than {first}, and one policy plays them"
                " all; give it one of its own ([policies.NAME]), or pad the smaller ones in a"
                " wrapper (env.wrappers)"
            )
    return observation, action


class Play:
    """Plays an environment of several agents, and refuses what breaks the rules above."""

    def __init__(self, env: ParallelEnv) -> None:
        self.env = env
        self.agents = tuple(env.possible_agents)  # in the order of their columns
        self._playing: set[str] = set()
        # As a vector of gymnasium's says it.
        self.single_observation_space = env.observation_space(self.agents[0])

    @property
    def acting(self) -> tuple[str, ...]:
        """Returns those whose actions the next step takes, in the order of their columns."""
        return tuple(agent for agent in self.agents if agent in self._playing)

    def space_of(self, agent: str) -> Any:
        """Returns the space of what an agent sees."""
        return self.env.observation_space(agent)

    @property
    def over(self) -> bool:
        """Says whether the next thing to do is a reset."""
        return not self.env.agents

    def reset(self, seed: int | None) -> dict[str, Any]:
        """Begins an episode; returns what those see who play in it from the start."""
        observations, _ = self.env.reset(seed=seed)
        self._playing.clear()
        if not self.env.agents:
            raise ValueError("an episode begins, and agents is empty")
        return self._joined(observations)

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, News], dict[str, Any]]:
        """Steps once; returns the news of who played, and what those see who have just come."""
        observations, rewards, ended, cut, infos = self.env.step(actions)
        still, news = set(self.env.agents), {}
        for agent in actions:
            if agent not in observations or agent not in rewards:
                raise ValueError(
                    f"{agent} played, and the step says nothing of it; where agents may skip steps,"
                    " wrap it in Skipping (env.wrappers)"
                )
            flags = flags_of(ended.get(agent), cut.get(agent))
            if not flags and agent not in still:
                raise ValueError(f"{agent} is no longer among the agents, and has not ended")
            if flags and agent in still:  # whoever comes back comes a step later
                raise ValueError(f"{agent} has ended, and is still among the agents")
            news[agent] = News(
                observations[agent], float(rewards[agent]), flags, infos.get(agent, {})
            )
            if flags:
                self._playing.discard(agent)
        came = {name: seen for name, seen in observations.items() if name not in actions}
        return news, self._joined(came)

    def _joined(self, observations: ByAgent) -> dict[str, Any]:
        """Takes in who comes now."""
        for agent in (*observations, *self.env.agents):
            if agent not in self.agents:
                raise ValueError(f"{agent} is not among the possible_agents {[*self.agents]}")
        came = {agent: observations[agent] for agent in self.env.agents if agent in observations}
        self._playing |= came.keys()
        for agent in self.env.agents:
            if agent not in self._playing:
                raise ValueError(f"{agent} is among the agents, and is shown nothing")
        return came
