"""Lets agents skip steps of an environment in which all others act at the same time."""

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

# Steps in a row in which nobody sees anything; an environment that goes on so is broken.
_MOST_IDLE: Final = 100_000


class Skipping:
    """Shows such an environment as one of turns (turns.py): whom a step shows an observation acts
    next, one after another; who is among the agents and is shown nothing skips that step. What an
    agent is paid meanwhile it is told of with its next observation."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.possible_agents = [*env.possible_agents]
        self._turns: deque[str] = deque()  # whose turn it is, and who comes then
        self._chosen: dict[str, Any] = {}  # what those do who have had theirs
        self._seen: dict[str, Any] = {}  # what each was shown last in this episode
        self._paid: dict[str, float] = {}  # since it acted
        self._infos: Mapping[str, Any] = {}
        self._ends: dict[str, tuple[bool, bool]] = {}  # of those who have not heard of their end

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    @property
    def agents(self) -> list[str]:
        """Returns those that play, and those who have not heard of their end."""
        return [a for a in self.possible_agents if a in self.env.agents or a in self._ends]

    @property
    def agent_selection(self) -> str:
        """Returns the agent whose turn it is."""
        return self._turns[0]

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        """Begins an episode."""
        observations, self._infos = self.env.reset(seed=seed, options=options)
        for kept in (self._turns, self._chosen, self._seen, self._paid, self._ends):
            kept.clear()
        self._show(observations)
        if not self._turns:
            self._advance()

    def last(self) -> tuple[Any, float, bool, bool, Any]:
        """Returns what the agent whose turn it is sees, and what it was paid since it acted."""
        agent = self._turns[0]
        ended, cut = self._ends.get(agent, (False, False))
        paid = self._paid.get(agent, 0.0)
        return self._seen[agent], paid, ended, cut, self._infos.get(agent, {})

    def step(self, action: Any) -> None:
        """Lets the agent act whose turn it is; the last one's action steps the environment."""
        agent = self._turns.popleft()
        self._paid[agent] = 0.0
        if agent in self._ends:
            del self._ends[agent], self._seen[agent]
        else:
            self._chosen[agent] = action
        if not self._turns:
            self._advance()

    def _advance(self) -> None:
        """Steps until somebody has a turn, or the episode is over."""
        for _ in range(_MOST_IDLE):
            if not self.env.agents:
                return
            given, self._chosen = self._chosen, {}
            observations, rewards, ended, cut, self._infos = self.env.step(given)
            for agent, reward in rewards.items():
                self._paid[agent] = self._paid.get(agent, 0.0) + float(reward)
            ends = {a: (bool(ended.get(a)), bool(cut.get(a))) for a in self.possible_agents}
            for agent, seen in self._seen.items():
                if any(ends[agent]):
                    self._ends[agent] = ends[agent]
                    self._seen[agent] = observations.get(agent, seen)
                    self._turns.append(agent)
            # Who ends before its first turn has nothing to hear.
            self._show({a: o for a, o in observations.items() if not any(ends.get(a, ()))})
            if self._turns:
                return
        raise ValueError(f"nobody has seen anything for {_MOST_IDLE} steps")

    def _show(self, observations: Mapping[str, Any]) -> None:
        """Takes in what those see who act next."""
        for agent, seen in observations.items():
            if agent not in self.possible_agents:
                raise ValueError(f"{agent} is not among the possible_agents {self.possible_agents}")
            if agent not in self.env.agents:
                raise ValueError(f"{agent} is shown something, and is not among the agents")
            if agent not in self._seen:
                self._paid[agent] = 0.0  # what came before its first turn is nobody's
            self._seen[agent] = seen
            self._turns.append(agent)
