"""The throughput that environments could reach if nothing besides them took time."""

import threading
import time
from collections.abc import Sequence

import numpy as np

from headrace.actors.action_converter import ActionConverter, random_rows
from headrace.actors.config import EnvConfig
from headrace.actors.envs import atari, envpool
from headrace.actors.envs.convert import mask_of, spaces_of
from headrace.actors.envs.make import make_any, make_env, spaces_of_any
from headrace.actors.envs.toys import sleepers
from headrace.actors.stepping.linux import minimise_timer_slack
from headrace.actors.stepping.step_cost import StepCost, cost_of
from headrace.launch.config import run_file
from headrace.launch.process import runtime

_STEPS, _LONGEST_S = 100_000, 3.0  # limits of a measurement
_BEGINS_S = 60.0  # within which all environments must be made


def steps_per_s(
    envs: int, *, step_s: float, computes: float, cores: float, inference_s: float = 0.0
) -> float:
    """Returns the limit at which every environment steps all the time and no core is more than
    busy.

    computes: share of a step that needs a core; inference_s: of one step, on a core too.
    """
    on_core = computes * step_s + inference_s
    return min(envs / step_s, cores / on_core if on_core else float("inf"))


def cores_of(run: run_file.Run) -> int:
    """Returns the cores for one sampler of the run, when all samplers are on this machine."""
    return max(1, runtime.cores() // run.actor.count)


def env_cost(env: EnvConfig, seed: int) -> StepCost | None:
    """Measures one environment alone; None = only native code steps it, many at once."""
    if env.id in ("headrace/Sleeper-v0", f"{sleepers.__name__}:Team"):
        return StepCost(sleepers.mean_step_s(env.kwargs), float(bool(env.kwargs.get("busy"))))
    if envpool.is_envpool(env) or atari.is_atari(env):
        return None
    alone = make_any(env)
    try:
        return cost_of(
            alone,
            spaces_of_any(alone, env),
            config=env,
            seed=seed,
            steps=_STEPS,
            longest_s=_LONGEST_S,
        )
    finally:
        alone.close()


def bare_steps_per_s(env: EnvConfig, seeds: Sequence[int], *, seconds: float) -> float:
    """Returns what this machine reaches: every environment stepped in a thread of its own, with
    random actions and no other work of ours, after the first quarter of the time.

    Sleeps end late, and each thread must take Python's lock again after them. With the samplers'
    seeds the steps last as long as theirs, so chance cancels in the ratio of the two.
    """
    steps, over = [0] * len(seeds), threading.Event()
    gate = threading.Barrier(len(seeds) + 1, timeout=_BEGINS_S)

    def play(column: int) -> None:
        minimise_timer_slack()
        alone, dice = make_env(env), np.random.default_rng(column)
        spaces = spaces_of(alone, env)
        actions = ActionConverter(spaces.action)
        newest = alone.reset(seed=seeds[column])[0]
        gate.wait()
        while not over.is_set():
            row = random_rows(spaces.action, dice, 1, mask_of(alone, newest, spaces))[0]
            newest, _, ended, cut, _ = alone.step(actions.one(row))
            steps[column] += 1
            if ended or cut:
                newest = alone.reset()[0]
        alone.close()

    threads = [threading.Thread(target=play, args=(n,), daemon=True) for n in range(len(seeds))]
    for thread in threads:
        thread.start()
    gate.wait()
    time.sleep(seconds / 4)
    before, began = sum(steps), time.monotonic()
    time.sleep(seconds * 3 / 4)
    rate = (sum(steps) - before) / (time.monotonic() - began)
    over.set()
    for thread in threads:
        thread.join()
    return rate
