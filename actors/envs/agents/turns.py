"""Environments whose agents take turns, as PettingZoo's AEC ones do.

Whatever has these attributes is one; PettingZoo need not be installed:

    possible_agents              names of all that may ever play
    agents                       of those that play now; empty = the episode is over
    agent_selection              whose turn it is
    observation_space(agent), action_space(agent)
    reset(seed=)
    last() -> observation, reward, termination, truncation, info
    step(action)

`last` is of the agent whose turn it is; its reward is all that was paid since it acted. Who has
ended is given one more turn to hear of it, is stepped with None, and is then no longer among the
agents. So a step is told when its agent is next at the turn, and not before.
"""

from typing import Any, Protocol

from headrace.actors.envs.agents.parallel import News, flags_of


class TurnsEnv(Protocol):
    """Is an environment whose agents take turns."""

    possible_agents: list[str]

    @property
    def agents(self) -> list[str]: ...

    @property
    def agent_selection(self) -> str: ...

    def observation_space(self, agent: str) -> Any: ...

    def action_space(self, agent: str) -> Any: ...

    def reset(self, seed: int | None = None) -> None: ...

    def last(self) -> tuple[Any, Any, bool, bool, dict[str, Any]]: ...

    def step(self, action: Any) -> None:
        """Lets the agent act whose turn it is."""

    def close(self) -> None: ...


class TurnsPlay:
    """Plays an environment whose agents take turns, and refuses what breaks the rules above."""

    def __init__(self, env: TurnsEnv) -> None:
        self.env = env
        self.agents = tuple(env.possible_agents)  # in the order of their columns
        self.acting: tuple[str, ...] = ()  # whose turn it is; () = the episode is over
        self.single_observation_space = env.observation_space(self.agents[0])
        self._told: set[str] = set()  # have had a turn, and have not ended

    def space_of(self, agent: str) -> Any:
        """Returns the space of what an agent sees."""
        return self.env.observation_space(agent)

    @property
    def over(self) -> bool:
        """Says whether the next thing to do is a reset."""
        return not self.env.agents

    def reset(self, seed: int | None) -> dict[str, Any]:
        """Begins an episode; returns what the first agent sees."""
        self.env.reset(seed=seed)
        self._told.clear()
        if not self.env.agents:
            raise ValueError("an episode begins, and agents is empty")
        _, came = self._next_turn()
        if not came:
            raise ValueError("an episode ends before anybody has acted")
        return came

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, News], dict[str, Any]]:
        """Lets one agent act; returns the news of those who have ended and of the one whose turn it
        is then, or what it sees if that is its first turn."""
        self.env.step(actions[self.env.agent_selection])
        return self._next_turn()

    def _next_turn(self) -> tuple[dict[str, News], dict[str, Any]]:
        news: dict[str, News] = {}
        heard: set[str] = set()
        self.acting = ()
        while self.env.agents:
            agent = self.env.agent_selection
            if agent not in self.agents:
                raise ValueError(f"{agent} is not among the possible_agents {[*self.agents]}")
            if agent not in self.env.agents:
                raise ValueError(f"{agent} has a turn, and is not among the agents")
            observation, reward, ended, cut, info = self.env.last()
            flags = flags_of(ended, cut)
            first = agent not in self._told
            if not first:
                news[agent] = News(observation, float(reward), flags, info)
            if not flags:
                self._told.add(agent)
                self.acting = (agent,)
                return news, ({agent: observation} if first else {})
            if agent in heard:  # it may come back, but not ended
                raise ValueError(f"{agent} has ended, and is still among the agents")
            heard.add(agent)
            self._told.discard(agent)
            self.env.step(None)
        if self._told:
            gone = ", ".join(sorted(self._told))
            raise ValueError(f"the episode is over, and {gone} had no turn to hear of it")
        return news, {}
