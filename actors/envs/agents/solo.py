"""Plays gymnasium's environments as those of several agents are played."""

from typing import Any

import gymnasium

from headrace.actors.envs.agents.parallel import News, flags_of

_ONLY = "agent"


class SoloPlay:
    """Plays an environment of one agent, as Play does one of several."""

    agents = (_ONLY,)

    def __init__(self, env: "gymnasium.Env[Any, Any]") -> None:
        self.env = env
        self.acting: tuple[str, ...] = ()
        self.single_observation_space = env.observation_space

    def space_of(self, agent: str) -> Any:
        """Returns the space of what an agent sees."""
        del agent
        return self.env.observation_space

    @property
    def over(self) -> bool:
        """Says whether the next thing to do is a reset."""
        return not self.acting

    def reset(self, seed: int | None) -> dict[str, Any]:
        """Begins an episode; returns what is seen first."""
        self.acting = self.agents
        return {_ONLY: self.env.reset(seed=seed)[0]}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, News], dict[str, Any]]:
        """Steps once; returns its news."""
        observation, reward, ended, cut, info = self.env.step(actions[_ONLY])
        flags = flags_of(ended, cut)
        if flags:
            self.acting = ()
        return {_ONLY: News(observation, float(reward), flags, info)}, {}
