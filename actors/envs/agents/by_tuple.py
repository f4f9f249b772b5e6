"""Shows environments that speak of their agents in tuples as ones that speak by name.

Level-based foraging and multi-robot warehouses are such: of gymnasium, with spaces that are tuples
of the agents' own, and as many rewards. All agents play from the beginning to the end.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace.actors.envs.agents.parallel import ByAgent
from headrace.broker.errors import UserError


class ByTuple:
    """Calls the agents agent_0, agent_1, .. in the order of the tuples."""

    def __init__(self, env: Any) -> None:
        spaces = [getattr(env, name, None) for name in ("observation_space", "action_space")]
        observed, acted = (getattr(space, "spaces", None) for space in spaces)
        if not isinstance(observed, Sequence) or not isinstance(acted, Sequence):
            raise UserError(f"ByTuple wraps an environment whose spaces are tuples, not {spaces}")
        if len(observed) != len(acted):
            raise UserError(f"{len(observed)} agents see something and {len(acted)} act")
        self.env = env
        self.possible_agents = [f"agent_{number}" for number in range(len(acted))]
        self.agents: list[str] = []  # who plays now: all, or nobody
        self._observed = dict(zip(self.possible_agents, observed, strict=True))
        self._acted = dict(zip(self.possible_agents, acted, strict=True))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def observation_space(self, agent: str) -> Any:
        return self._observed[agent]

    def action_space(self, agent: str) -> Any:
        return self._acted[agent]

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[ByAgent, ByAgent]:
        """Begins an episode; returns what all see."""
        observations, info = self.env.reset(seed=seed, options=options)
        self.agents = [*self.possible_agents]
        return self._named(observations), dict.fromkeys(self.agents, info)

    def step(self, actions: ByAgent) -> tuple[ByAgent, ByAgent, ByAgent, ByAgent, ByAgent]:
        """Steps all at once."""
        chosen = tuple(actions[agent] for agent in self.possible_agents)
        observations, rewards, ended, cut, info = self.env.step(chosen)
        # Some say it once, some for each agent.
        over, late = bool(np.all(ended)), bool(np.all(cut))
        told = (
            self._named(observations),
            self._named(rewards),
            dict.fromkeys(self.possible_agents, over),
            dict.fromkeys(self.possible_agents, late),
            dict.fromkeys(self.possible_agents, info),
        )
        if over or late:
            self.agents = []
        return told

    def _named(self, values: Sequence[Any]) -> dict[str, Any]:
        return dict(zip(self.possible_agents, values, strict=True))
