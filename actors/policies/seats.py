"""Says which agents each policy plays, and where what they see and do lies.

An environment that several policies share is one of gymnasium's to whatever steps it: its
observation is a piece of memory, in which each policy has a frame for its own agents, and its
action holds the rows that the policies chose, one after another.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.actors.config import EnvConfig
from headrace.actors.envs.agents.kinds import has_agents, takes_turns
from headrace.actors.envs.agents.parallel import own_agents
from headrace.actors.envs.convert import EnvError
from headrace.actors.envs.make import spaces_of_any
from headrace.actors.stepping.stepper import Frame
from headrace.learner.spaces import Spaces


@dataclass(frozen=True, slots=True)
class Seats:
    """Holds one policy's part of an environment."""

    config: EnvConfig  # as this policy's run has it
    agents: tuple[str, ...]  # that it plays, in the order of their columns
    spaces: Spaces
    at: int  # byte of the observation where its frame begins
    first: int  # number of the action where its rows begin

    @property
    def nbytes(self) -> int:
        """Returns the bytes of its frame."""
        return Frame.nbytes(self.spaces, groups=1, envs=len(self.agents))

    @property
    def numbers(self) -> int:
        """Counts the numbers of all its agents' actions."""
        return len(self.agents) * math.prod(self.spaces.action.shape)

    def frame(self, memory: memoryview) -> Frame:
        """Returns its frame in the memory of one observation."""
        own = memory[self.at : self.at + self.nbytes]
        return Frame.over(own, self.spaces, groups=1, envs=len(self.agents))

    def rows(self, actions: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
        """Returns what its agents are to do, of one environment's action."""
        own = actions[self.first : self.first + self.numbers]
        action = self.spaces.action
        return own.reshape(len(self.agents), *action.shape).astype(action.dtype)


def seats_of(env: Any, configs: Sequence[EnvConfig]) -> list[Seats]:
    """Returns each policy's part of this environment; EnvError unless every agent is played by
    exactly one."""
    name = configs[0].id
    if not has_agents(env):
        raise EnvError(f"{name} has one agent, and {len(configs)} policies want to play in it")
    if takes_turns(env):
        raise EnvError(
            f"{name}: its agents take turns, and several policies can only play where all act at"
            " the same time; let one policy play all of them"
        )
    players: dict[str, int] = {}
    found: list[Seats] = []
    at = first = 0
    for number, config in enumerate(configs):
        agents = own_agents(env, config.agents, name)
        for agent in agents:
            if players.setdefault(agent, number) != number:
                both = [[*configs[players[agent]].agents], [*config.agents]]
                raise EnvError(f"{name}: {agent} is played by two policies, env.agents = {both}")
        seats = Seats(config, agents, spaces_of_any(env, config), at, first)
        at, first = at + seats.nbytes, first + seats.numbers
        found.append(seats)
    idle = [agent for agent in env.possible_agents if agent not in players]
    if idle:
        raise EnvError(f"{name}: no policy plays {', '.join(idle)}; add them to the agents of one")
    return found


def sizes(seats: Sequence[Seats]) -> tuple[int, int]:
    """Returns the bytes of an observation, and the numbers of an action, of all together."""
    last = seats[-1]
    return last.at + last.nbytes, last.first + last.numbers
