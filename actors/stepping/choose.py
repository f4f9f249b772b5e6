"""Chooses how to step: as the run says, or as a measurement suggests."""

import logging
import os
from typing import NamedTuple

from headrace.actors.config import ActorConfig, EnvConfig
from headrace.actors.envs import atari, envpool
from headrace.actors.envs.agents.kinds import agents_in, takes_turns
from headrace.actors.envs.convert import EnvError, spaces_of
from headrace.actors.envs.make import look_at, make_any, make_vector, probe, spaces_of_any
from headrace.actors.envs.settings import EnvSettings
from headrace.actors.envs.where import Where
from headrace.actors.stepping.envpool_stepper import EnvPoolStepper
from headrace.actors.stepping.inline import InlineStepper
from headrace.actors.stepping.processes.process_stepper import ProcessStepper
from headrace.actors.stepping.step_cost import StepCost, cost_of, speedup
from headrace.actors.stepping.stepper import EnvsSpec, Stepper
from headrace.actors.stepping.threads import ThreadStepper
from headrace.learner.spaces import Spaces

log = logging.getLogger(__name__)

# A step shorter than this is not worth handing over.
_HAND_OVER_S = 150e-6
_VECTOR_HAND_OVER_S = 1e-3
# The event loop may be blocked this long without harm.
_AWAY_S = 5e-3
_WAITS_BELOW = 0.6  # share of computing
_RELEASES_FROM = 1.5  # cores that two threads keep busy
_MOST_THREADS = 256  # that `auto` starts in a process for the environments of its groups


class _Choice(NamedTuple):
    stepping: str  # inline, threads, processes
    why: str  # "" = the run says so
    spaces: Spaces
    vector: bool = False
    wanted: int = 1  # environments, or groups of them, to step at a time; 1 = groups as they are
    agents: int = 0  # of an environment that has several; 0 = it has one, and is none of these
    turns: bool = False  # which take turns


def make_stepper(
    actor: ActorConfig,
    env: EnvConfig,
    *,
    envs: int,
    seed: int,
    sampler: str = Where().sampler,
    whole: bool = False,
) -> Stepper:
    """Makes the stepper of a sampler with actor.groups groups of `envs` environments. `whole`: no
    group is stepped in parts."""
    groups = actor.groups
    if env.agents:
        raise EnvError(
            f"env.agents: this run's policy plays only {', '.join(env.agents)}; a sampler needs"
            " the policies of the others too, one --broker for each"
        )
    if envpool.is_envpool(env):
        return EnvPoolStepper(env, groups=groups, envs=envs, seed=seed)
    choice = _choose(actor, env, envs=envs, seed=seed)
    parts = 1 if whole else parts_of(envs, groups=groups, wanted=choice.wanted)
    if choice.agents:
        parts = _environments(env, envs, choice.agents)
    if choice.why:
        what = "environments in each group" if choice.agents else "parts of each group side by side"
        each = f", {parts} {what}" if parts > 1 else ""
        log.info("stepping = %s: %s%s", choice.stepping, choice.why, each)
    if choice.turns:
        parts = envs
    made = EnvsSpec(
        env,
        choice.spaces,
        groups * parts,
        envs // parts,
        seed,
        choice.vector,
        sampler,
        agents=choice.agents,
        turns=choice.turns,
    )
    stepper: Stepper
    if choice.stepping == "inline":
        stepper = InlineStepper(made)
    elif choice.stepping == "threads":
        stepper = ThreadStepper(made, timeout_s=actor.step_timeout_s)
    else:
        stepper = ProcessStepper(made, workers=actor.workers, timeout_s=actor.step_timeout_s)
    stepper.frame.parts, stepper.frame.turns = parts, made.together
    stepper.frame.agents = made.agents
    stepper.frame.settings[:] = EnvSettings(env).initial
    return stepper


def _choose(actor: ActorConfig, env: EnvConfig, *, envs: int, seed: int) -> _Choice:
    wanted = actor.stepping
    native = atari.is_atari(env) and envs > 1 and not env.single
    if wanted == "vector" or (wanted == "auto" and native):
        return _vector(env, envs=envs, seed=seed)
    if wanted == "auto":
        return _measured(env, actor, envs=envs, seed=seed)
    spaces, agents, turns = look_at(env)
    return _Choice(wanted, "", spaces, agents=agents, turns=turns)


def _vector(env: EnvConfig, *, envs: int, seed: int) -> _Choice:
    if atari.is_atari(env):
        # Each game takes 0.2 s to load and a third of a millisecond a step: no need to try.
        return _Choice("threads", "ALE's own vector class, which computes in C++", probe(env), True)
    vector = make_vector(env, envs)
    try:
        spaces = spaces_of(vector, env)
        cost = cost_of(vector, spaces, config=env, seed=seed, width=envs)
    finally:
        vector.close()
    stepping = "inline" if cost.seconds < _VECTOR_HAND_OVER_S else "threads"
    return _Choice(stepping, f"the environment's own vector class; {cost}", spaces, vector=True)


def _measured(env: EnvConfig, actor: ActorConfig, *, envs: int, seed: int) -> _Choice:
    groups, samplers = actor.groups, actor.count
    first = make_any(env)
    try:
        spaces, agents, turns = spaces_of_any(first, env), agents_in(first), takes_turns(first)
        if agents:  # each environment is a group
            groups, envs = groups * _environments(env, envs, agents), 1
        cost, cores = cost_of(first, spaces, config=env, seed=seed), _cores()
        stepping, why = stepping_by_cost(cost, groups=groups, envs=envs, cores=cores)
        if not stepping:
            second = make_any(env)
            try:
                times = speedup(first, second, spaces, config=env)
            finally:
                second.close()
            stepping = "threads" if times >= _RELEASES_FROM else "processes"
            why = f"{cost}, two threads keep {times:.1f} cores busy"
    finally:
        first.close()
    # What waits may wait side by side; what computes needs a core for each.
    waits = stepping == "threads" and cost.computes < _WAITS_BELOW
    wanted = (
        min(groups * envs, _MOST_THREADS) if waits else actor.workers or max(1, cores // samplers)
    )
    wanted = 1 if stepping == "inline" else wanted
    return _Choice(stepping, why, spaces, wanted=wanted, agents=agents, turns=turns)


def _environments(env: EnvConfig, envs: int, agents: int) -> int:
    """Returns how many environments of so many agents fill an unroll of `envs` columns."""
    if envs % agents:
        raise EnvError(
            f"unroll.envs = {envs}: each of the {agents} agents of {env.id} is a column; set it to"
            f" {agents}, or a multiple of that"
        )
    return envs // agents


def stepping_by_cost(cost: StepCost, *, groups: int, envs: int, cores: int) -> tuple[str, str]:
    """Returns (stepping, why) where the cost alone decides; "" = it depends on threads."""
    if cost.seconds < _HAND_OVER_S:
        return "inline", str(cost)
    waits, short = cost.computes < _WAITS_BELOW, cost.seconds * envs < _AWAY_S
    if waits and groups * envs > 1:
        return "threads", str(cost)
    if groups == 1 and short:
        return "inline", f"{cost}, and there is one group only"
    if waits:
        return "threads", str(cost)
    if cores == 1:
        return "inline" if short else "processes", f"{cost}, and there is one core only"
    return "", ""


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def parts_of(envs: int, *, groups: int, wanted: int) -> int:
    """Returns the number of equal parts to split each group into, so that all groups together have
    `wanted`: the fewest that are enough, or as many as there can be."""
    equal = [parts for parts in range(1, envs + 1) if envs % parts == 0]
    return next((parts for parts in equal if groups * parts >= wanted), envs)
