"""What environments could give if nothing beside them took time, however they are grouped."""

from actors.config import EnvConfig
from actors.envs import atari, pool, sleepers
from actors.envs.convert import spaces_of
from actors.envs.make import make_env
from actors.stepping.measure import Cost, cost_of
from launch import config, process

_STEPS, _LONGEST_S = 100_000, 3.0  # of the measurement


def steps_per_s(
    envs: int, *, step_s: float, computes: float, cores: float, inference_s: float = 0.0
) -> float:
    """Every environment steps all the time, and no core computes more than all the time.

    computes: share of a step that needs a core; inference_s: of one step, on a core too.
    """
    on_core = computes * step_s + inference_s
    return min(envs / step_s, cores / on_core if on_core else float("inf"))


def cores_of(run: config.Run) -> int:
    """For one of its samplers, when all of them are on this machine."""
    return max(1, process.cores() // run.actor.count)


def cost(env: EnvConfig, seed: int) -> Cost | None:
    """One environment alone; None = it is stepped by native code only, many at once."""
    if env.id.startswith(sleepers.__name__):
        return Cost(sleepers.mean_step_s(env.kwargs), float(bool(env.kwargs.get("busy"))))
    if pool.named(env) or atari.named(env):
        return None
    alone = make_env(env)
    try:
        return cost_of(
            alone, spaces_of(alone, env), config=env, seed=seed, steps=_STEPS, longest_s=_LONGEST_S
        )
    finally:
        alone.close()
