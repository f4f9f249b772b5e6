"""Trainings by `headrace train`: throughput in steady state, beside what its parts cost alone, and
the time until CartPole is solved."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.launch.bench import output, part_costs
from headrace.launch.bench.train_command import train
from headrace.launch.config import run_file
from headrace.launch.process import runtime

# By IMPALA, and not until it is solved.
_SETS = (
    "algorithm.name=impala",
    "algorithm.replay_share=0.0",
    "stop.return=1e9",
    "stop.steps=1000000000",
)


@dataclass(frozen=True, slots=True)
class Case:
    """Describes a run to be measured."""

    bench: str  # its name in the JSON line
    run: str
    sets: tuple[str, ...]
    seconds: float


# CartPole by larger batches than for learning: these measure how much of the machine is used.
CASES = {
    "make": Case(
        "throughput",
        "cartpole",
        ("unroll.envs=64", "unroll.length=32", "pacing.batch_unrolls=2"),
        25.0,
    ),
    "vector": Case(
        "throughput",
        "cartpole-vector",
        ("unroll.envs=512", "unroll.length=16", "pacing.batch_unrolls=1"),
        25.0,
    ),
    "atari": Case("atari", "breakout", (), 90.0),
}


def throughput(kind: str) -> dict[str, Any]:
    """Measures trained agent steps a second; the sum of the parts is what all cores would reach if
    they only stepped, inferred and trained, each measured alone on one core."""
    case = CASES[kind]
    sets = (*case.sets, *_SETS)
    output.parameters(
        run=case.run, seconds=case.seconds, cores=runtime.cores(), sets=" ".join(case.sets)
    )
    parts = part_costs.costs(run_file.load(case.run, sets))
    limit = part_costs.sum_of_parts_per_s(parts)
    output.parameters(
        **{f"{name}_us": round(cost * 1e6, 1) for name, cost in parts.items()},
        sum_of_parts_per_s=round(limit, 1),
    )
    summary = train(case.run, ["--stop-seconds", str(case.seconds)], sets)
    unrolls = summary["unrolls"]
    same = ("wire_bytes_per_step", "mean_return", "trained_steps", "lag", "unrolls")
    figures = {
        "kind": kind,
        "run": case.run,
        "sampled_per_s": summary["steps_per_s"],
        "trained_per_s": summary["trained_steps_per_s"],
        "sum_of_parts_per_s": round(limit, 1),
        "ratio": round(summary["trained_steps_per_s"] / limit, 3),
        "trained_over_generated": round(unrolls["trained"] / max(1, unrolls["generated"]), 4),
        **{name: summary[name] for name in (*same, "peak_rss_mb", "peak_rss_sum_mb")},
    }
    output.result(case.bench, figures)
    return figures


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
