"""Environments of uneven speed: ours while learning, gymnasium's vector environment, the ideal.

And what it costs that all of them supply alike, whether a policy learns what is slow to sample, and
whether as many more CPUs give as many more steps.
"""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv

from headrace.actors.action_converter import ActionConverter, random_rows
from headrace.actors.config import EnvConfig
from headrace.actors.envs.convert import mask_of, spaces_of
from headrace.actors.envs.make import make_env
from headrace.actors.envs.toys import sleepers
from headrace.launch.bench import ideal as ideals
from headrace.launch.bench import output
from headrace.launch.bench.train_command import train
from headrace.launch.config import run_file
from headrace.launch.local import child_plans
from headrace.launch.process import runtime

RUNS = ("lockstep-tail", "lockstep-normal", "lockstep-busy")
# Of 16 environments every fourth takes 100 ms for a step, the others 1 ms.
_QUICK_S, _SLOW_S, _ENVS = 0.001, 0.1, 16
_BALANCES = {"speed": 12 / _QUICK_S + 4 / _SLOW_S, "environments": _ENVS / _SLOW_S}  # and the ideal
# Environments of lockstep-tail, each as much as one CPU steps, and how many times as long all of it
# lasts: what acts and learns has two cores here, where the CPUs would have their own.
_CPUS, _A_SAMPLER, _RESET_S, _SLOWER = (24, 96, 384), 24, 0.1, 16.0
_WAYS: dict[str, tuple[str, ...]] = {
    "speed": (),
    "environments": ("pacing.balance=environments",),
    "synchronous": ("pacing.max_lag=0",),
}


def bench(run: str, *, seconds: float = 40.0) -> dict[str, Any]:
    """Compares agent steps a second with what the environments could reach.

    Ours: sampled and trained by `headrace train`, after the first quarter of the time. Gymnasium's:
    AsyncVectorEnv with random actions and nothing else, one process for each environment. The
    machine's, where steps sleep: the same environments in bare threads, with our seeds and for the
    same time. What ours lacks to that is our cost; the rest of what the ideal lacks is the
    machine's.
    """
    loaded = run_file.load(run)
    count = loaded.actor.count * loaded.actor.groups * loaded.unroll.envs
    cost, cores = ideals.env_cost(loaded.env, seed=1), runtime.cores()
    assert cost is not None
    mean_s = cost.seconds
    ideal = ideals.steps_per_s(count, step_s=mean_s, computes=cost.computes, cores=cores)
    output.parameters(
        run=run,
        environments=count,
        mean_step_ms=round(mean_s * 1000, 3),
        cores=cores,
        ideal_per_s=round(ideal, 1),
        seconds=seconds,
    )
    theirs = _gymnasium_per_s(loaded.env, count, seconds=seconds / 4)
    output.parameters(gymnasium_async_per_s=round(theirs, 1), fraction=round(theirs / ideal, 4))
    bare = 0.0
    if not cost.computes:
        seeds = [
            child_plans.actor_seed(loaded.run.seed, index) + column
            for index in range(loaded.actor.count)
            for column in range(count // loaded.actor.count)
        ]
        bare = ideals.bare_steps_per_s(loaded.env, seeds, seconds=seconds)
        output.parameters(machine_per_s=round(bare, 1), fraction=round(bare / ideal, 4))
    summary = train(run, ["--stop-seconds", str(seconds)])
    figures = {
        "run": run,
        "environments": count,
        "ideal_per_s": round(ideal, 1),
        "sampled_per_s": summary["steps_per_s"],
        "trained_per_s": summary["trained_steps_per_s"],
        "fraction": round(summary["steps_per_s"] / ideal, 4),
        "machine_per_s": round(bare, 1) if bare else None,
        "fraction_of_machine": round(summary["steps_per_s"] / bare, 4) if bare else None,
        "gymnasium_async_per_s": round(theirs, 1),
        "gymnasium_async_fraction": round(theirs / ideal, 4),
        "peak_rss_mb": summary["peak_rss_mb"],
        "peak_rss_sum_mb": summary["peak_rss_sum_mb"],
        "unrolls": summary["unrolls"],
    }
    output.result("lockstep", figures)
    return figures


def balance(*, seconds: float = 60.0, seeds: Sequence[int] = (1, 2, 3, 4, 5)) -> dict[str, Any]:
    """Measures steps a second and the shares of the quarters of the environments by both balances;
    then the steps until run slow-branch is solved, by both and by synchronous sampling."""
    output.parameters(quick_ms=1000 * _QUICK_S, slow_ms=1000 * _SLOW_S, environments=_ENVS)
    output.parameters(seconds=seconds, seeds=list(seeds))
    figures: dict[str, Any] = {"seconds": seconds, "seeds": list(seeds)}
    kwargs = f"env.kwargs={{step_s = {_QUICK_S}, slow_step_s = {_SLOW_S}}}"
    for name, ideal in _BALANCES.items():
        sets = (kwargs, f"actor.groups={_ENVS}", "unroll.length=5", f"pacing.balance={name}")
        summary = train("lockstep-tail", ["--stop-seconds", str(seconds)], sets)
        price = {"ideal_per_s": ideal, "sampled_per_s": summary["steps_per_s"]}
        figures[name] = price | {"trained_quarters": summary["trained_quarters"]}
        output.parameters(balance=name, **figures[name])
    for way, changed in _WAYS.items():
        found = [train("slow-branch", ["--seed", str(seed)], changed) for seed in seeds]
        told = ("solved_at_steps", "mean_return", "wall_s")
        figures[f"learnt_{way}"] = {name: [one[name] for one in found] for name in told}
        output.parameters(way=way, **figures[f"learnt_{way}"])
    output.result("balance", figures)
    return figures


def cpus(*, seconds: float = 60.0) -> list[dict[str, Any]]:
    """Measures steps a second, sampled and trained, by 24, 96 and 384 environments that step beside
    each other, beside what they could give and what they would in lock-step."""
    output.parameters(cpus=list(_CPUS), a_sampler=_A_SAMPLER, slower=_SLOWER, seconds=seconds)
    rng, figures = np.random.default_rng(0), []
    for count in _CPUS:
        sets = (
            f"env.kwargs={{kind = 'tail', reset_s = {_RESET_S}, slower = {_SLOWER}}}",
            f"actor.count={count // _A_SAMPLER}",
            f"pacing.batch_unrolls={count}",
        )
        run = run_file.load("lockstep-tail", sets)
        ideal = count / sleepers.mean_step_s(run.env.kwargs)
        slowest = sleepers.drawn_steps_s(run.env.kwargs, (2000, count), rng).max(axis=1).mean()
        slowest += sleepers.mean_step_s(run.env.kwargs | {"step_s": 0.0})  # all reset together
        summary = train("lockstep-tail", ["--stop-seconds", str(seconds)], sets)
        figures.append(
            {
                "cpus": count,
                "ideal_per_s": round(ideal, 1),
                "sampled_per_s": summary["steps_per_s"],
                "trained_per_s": summary["trained_steps_per_s"],
                "fraction": round(summary["steps_per_s"] / ideal, 4),
                "lock_step_fraction": round(count / float(slowest) / ideal, 4),
            }
        )
        output.parameters(**figures[-1])
    output.result("cpus", {"slower": _SLOWER, "seconds": seconds, "cpus": figures})
    return figures


def _gymnasium_per_s(config: EnvConfig, envs: int, *, seconds: float) -> float:
    """Returns agent steps a second of AsyncVectorEnv by random actions, after a fifth of
    warm-up."""
    vector = AsyncVectorEnv([lambda: make_env(config)] * envs)
    try:
        newest = vector.reset(seed=1)[0]
        rng = np.random.default_rng(0)
        spaces = spaces_of(vector, config)
        actions = ActionConverter(spaces.action)
        count, began, counted = 0, time.perf_counter(), 0.0
        while True:
            mask = mask_of(vector, newest, spaces)
            newest = vector.step(actions.many(random_rows(spaces.action, rng, envs, mask)))[0]
            passed = time.perf_counter() - began
            if not counted and passed > seconds / 5:
                counted = passed
            elif counted:
                count += envs
            if passed >= seconds:
                return count / (passed - counted)
    finally:
        vector.close(terminate=True)
