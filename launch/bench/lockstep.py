"""Environments of uneven speed: ours while learning, gymnasium's vector environment, the ideal."""

from typing import Any

from headrace.actors.envs import gymnasium_async
from headrace.launch.bench import ideal as ideals
from headrace.launch.bench import output
from headrace.launch.bench.train_command import train
from headrace.launch.config import run_file
from headrace.launch.local import child_plans
from headrace.launch.process import runtime

RUNS = ("lockstep-tail", "lockstep-normal", "lockstep-busy")


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
    theirs = gymnasium_async.steps_per_second(loaded.env, count, seconds=seconds / 4)
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
