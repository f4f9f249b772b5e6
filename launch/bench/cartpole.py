"""CartPole with `headrace train` in real processes: time until solved, and steady throughput."""

import statistics
from collections.abc import Sequence
from typing import Any

from headrace.launch.bench import output, part_costs
from headrace.launch.bench.train_command import train


def solve(*, seeds: Sequence[int] = (1, 2, 3, 4, 5), run: str = "cartpole") -> dict[str, Any]:
    """Measures the wall time from process start until the mean of 100 training episodes is 475."""
    output.parameters(run=run, seeds=list(seeds), goal=475)
    found = []
    for seed in seeds:
        summary = train(run, ["--seed", str(seed), "--stop-seconds", "120"])
        found.append(summary)
        output.parameters(
            seed=seed,
            solved_s=summary["solved_at_s"],
            steps=summary["solved_at_steps"],
            first_train_s=summary["first_train_s"],
            peak_mb=summary["peak_rss_mb"],
        )
    times = [s["solved_at_s"] if s["solved_at_s"] is not None else float("inf") for s in found]
    median = statistics.median(times)
    figures = {
        "run": run,
        "solved_s": times,
        "median_s": median,
        "worst_over_median": round(max(times) / median, 2),
        "solved_steps": [s["solved_at_steps"] for s in found],
        "first_train_s": statistics.median(s["first_train_s"] for s in found),
        "peak_rss_mb": max(s["peak_rss_mb"] for s in found),
        "peak_rss_sum_mb": max(s["peak_rss_sum_mb"] for s in found),
    }
    output.result("solve", figures)
    return figures


# Larger batches than for learning: this measures how much of the machine is used.
THROUGHPUT = {
    "make": ("cartpole", ("unroll.envs=64", "unroll.length=32", "pacing.batch_unrolls=2")),
    "vector": (
        "cartpole-vector",
        ("unroll.envs=512", "unroll.length=16", "pacing.batch_unrolls=1"),
    ),
}


def throughput(kind: str, *, seconds: float = 25.0) -> dict[str, Any]:
    """Compares trained steps a second in steady state with the sum of the parts, measured just
    before."""
    run, sets = THROUGHPUT[kind]
    common = ("algorithm.name=impala", "stop.return=1e9", "stop.steps=1000000000")
    given = [word for setting in (*sets, *common) for word in ("--set", setting)]
    output.parameters(run=run, seconds=seconds, sets=" ".join(sets))
    limit = part_costs.sum_of_parts(kind, envs=_envs(sets), batch=_envs(sets) * 32)
    summary = train(run, [*given, "--stop-seconds", str(seconds)])
    unrolls = summary["unrolls"]
    figures = {
        "kind": kind,
        "trained_per_s": summary["trained_steps_per_s"],
        "sampled_per_s": summary["steps_per_s"],
        "sum_of_parts_per_s": round(limit),
        "ratio": round(summary["trained_steps_per_s"] / limit, 3),
        "trained_over_generated": round(unrolls["trained"] / max(1, unrolls["generated"]), 4),
        "lag": summary["lag"],
        "peak_rss_mb": summary["peak_rss_mb"],
        "peak_rss_sum_mb": summary["peak_rss_sum_mb"],
    }
    output.result("throughput", figures)
    return figures


def _envs(sets: Sequence[str]) -> int:
    return next(int(s.partition("=")[2]) for s in sets if s.startswith("unroll.envs"))
