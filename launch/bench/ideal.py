"""What environments could give if nothing beside them took time, however they are grouped."""

from headrace.actors.config import EnvConfig
from headrace.actors.envs import atari, envpool
from headrace.actors.envs.convert import spaces_of
from headrace.actors.envs.make import make_env
from headrace.actors.envs.toys import sleepers
from headrace.actors.stepping.step_cost import Cost, cost_of
from headrace.launch.config import run_file
from headrace.launch.process import runtime

_STEPS, _LONGEST_S = 100_000, 3.0  # of the measurement


def steps_per_s(
    envs: int, *, step_s: float, computes: float, cores: float, inference_s: float = 0.0
) -> float:
    """Every environment steps all the time, and no core computes more than all the time.

    computes: share of a step that needs a core; inference_s: of one step, on a core too.
    """
    on_core = computes * step_s + inference_s
    return min(envs / step_s, cores / on_core if on_core else float("inf"))


def cores_of(run: run_file.Run) -> int:
    """For one of its samplers, when all of them are on this machine."""
    return max(1, runtime.cores() // run.actor.count)


def cost(env: EnvConfig, seed: int) -> Cost | None:
    """One environment alone; None = it is stepped by native code only, many at once."""
    if env.id == "headrace/Sleeper-v0":
        return Cost(sleepers.mean_step_s(env.kwargs), float(bool(env.kwargs.get("busy"))))
    if envpool.named(env) or atari.named(env):
        return None
    alone = make_env(env)
    try:
        return cost_of(
            alone, spaces_of(alone, env), config=env, seed=seed, steps=_STEPS, longest_s=_LONGEST_S
        )
    finally:
        alone.close()
