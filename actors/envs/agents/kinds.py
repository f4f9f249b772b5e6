"""Tells which kind an environment is: of one agent, of several at the same time, or of turns."""

from typing import Any, TypeAlias

import gymnasium

from headrace.actors.envs.agents.parallel import ParallelEnv, Play
from headrace.actors.envs.agents.solo import SoloPlay
from headrace.actors.envs.agents.turns import TurnsEnv, TurnsPlay

AnyEnv: TypeAlias = "gymnasium.Env[Any, Any] | ParallelEnv | TurnsEnv"
AnyPlay: TypeAlias = Play | TurnsPlay | SoloPlay


def has_agents(env: object) -> bool:
    """Tells whether it is an environment of several agents."""
    return hasattr(env, "possible_agents")


def agents_in(env: Any) -> int:
    """Returns how many agents may ever play in it; 0 = it is no environment of several."""
    return len(env.possible_agents) if has_agents(env) else 0


def takes_turns(env: object) -> bool:
    """Tells whether its agents act one after another."""
    return has_agents(env) and hasattr(env, "last")


def play_of(env: Any) -> AnyPlay:
    """Returns what plays this environment, whichever kind it is."""
    if takes_turns(env):
        return TurnsPlay(env)
    return Play(env) if agents_in(env) else SoloPlay(env)
