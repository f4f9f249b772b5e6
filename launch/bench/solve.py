"""The time until `headrace train` has solved CartPole."""

import statistics
from collections.abc import Sequence
from typing import Any

from headrace.launch.bench import output
from headrace.launch.bench.train_command import train


def bench(*, seeds: Sequence[int] = (1, 2, 3, 4, 5), run: str = "cartpole") -> dict[str, Any]:
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
