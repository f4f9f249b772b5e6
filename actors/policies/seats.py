"""Says which agents each policy plays, and where what they see and do lies.

An environment that several policies share is one of gymnasium's to whatever steps it: its
observation is a piece of memory, in which each policy has a frame for its own agents, and its
action holds the rows that the policies chose, one after another.
"""

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.actors.config import EnvConfig
from headrace.actors.envs.agents.kinds import has_agents, takes_turns
from headrace.actors.envs.agents.parallel import own_agents
from headrace.actors.envs.convert import EnvError
from headrace.actors.envs.make import make_any, spaces_of_any
from headrace.actors.stepping.stepper import Frame
from headrace.learner.spaces import Spaces

# At the end of an observation: whose turn it is, and the number of the episode.
_TAIL: Final = np.dtype([("turn", np.int64), ("episode", np.int64)])


@dataclass(frozen=True, slots=True)
class Seats:
    """Holds one policy's part of an environment."""

    config: EnvConfig  # as this policy's run has it
    agents: tuple[str, ...]  # that it plays, in the order of their columns
    spaces: Spaces
    at: int  # byte of the observation where its frame begins
    first: int  # number of the action where its rows begin
    turns: bool  # agents act one after another, not all at the same time

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


def seats_of(env: Any, configs: Sequence[EnvConfig]) -> list[Seats]:
    """Returns the part of this environment that each of these sections names; EnvError unless every
    agent is in exactly one."""
    name = configs[0].id
    if not has_agents(env):
        raise EnvError(f"{name} has one agent, and env.agents or env.others name several")
    players: dict[str, int] = {}
    found: list[Seats] = []
    at = first = 0
    for number, config in enumerate(configs):
        agents = own_agents(env, config.agents, name)
        for agent in agents:
            if players.setdefault(agent, number) != number:
                both = [[*configs[players[agent]].agents], [*config.agents]]
                raise EnvError(f"{name}: {agent} is played by two, env.agents = {both}")
        seats = Seats(config, agents, spaces_of_any(env, config), at, first, takes_turns(env))
        at, first = at + seats.nbytes, first + seats.numbers
        found.append(seats)
    idle = [agent for agent in env.possible_agents if agent not in players]
    if idle:
        raise EnvError(
            f"{name}: nobody plays {', '.join(idle)}: add them to the agents of a policy, or say"
            " in env.others who plays them; of several policies a sampler needs every --broker, an"
            " evaluator --beside"
        )
    return found


def seated(configs: Sequence[EnvConfig]) -> tuple[list[Seats], list[tuple[str, Seats]]]:
    """Makes the environment once; returns its part that each section names, and the parts of agents
    that nobody trains with who plays them."""
    named = untrained(configs[0])
    with contextlib.closing(make_any(configs[0])) as env:
        seats = seats_of(env, [*configs, *(config for _, config in named)])
    players = [name for name, _ in named]
    return seats[: len(configs)], [*zip(players, seats[len(configs) :], strict=True)]


def untrained(config: EnvConfig) -> list[tuple[str, EnvConfig]]:
    """Returns who plays the agents that nobody trains, and the section that names these."""
    found: dict[str, list[str]] = {}
    for pattern, player in config.others.items():
        found.setdefault(player, []).append(pattern)
    return [
        (player, msgspec.structs.replace(config, agents=tuple(named), metrics=(), critic=()))
        for player, named in found.items()
    ]


def sizes(seats: Sequence[Seats]) -> tuple[int, int]:
    """Returns the bytes of an observation, and the numbers of an action, of all together."""
    last = seats[-1]
    return last.at + last.nbytes + _TAIL.itemsize, last.first + last.numbers


def whose_turn(observations: NDArray[Any]) -> NDArray[np.int64]:
    """Returns the numbers of the agents whose turn it is, in these observations [.., bytes]; agents
    are counted over all seats."""
    return _tail(observations, "turn")


def episode_of(observations: NDArray[Any]) -> NDArray[np.int64]:
    """Returns the numbers of the episodes of which these observations [.., bytes] are."""
    return _tail(observations, "episode")


def _tail(observations: NDArray[Any], name: str) -> NDArray[np.int64]:
    found: NDArray[np.int64] = observations[..., -_TAIL.itemsize :].view(_TAIL)[..., 0][name]
    return found
