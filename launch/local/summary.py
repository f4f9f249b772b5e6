"""Writes summary.json: what a run did, from its processes' own reports and journals."""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.broker import durable
from headrace.broker.journal import audit, fates
from headrace.broker.league_results import GAMES, PAST
from headrace.broker.quarter_shares import quarter_shares
from headrace.launch.config import run_file
from headrace.launch.config.run_sections import StopSection
from headrace.launch.explain import explain, figures
from headrace.launch.local import run_folder
from headrace.launch.local.part_costs import PartCosts
from headrace.launch.monitor.merged_status import merged
from headrace.launch.process import runtime
from headrace.launch.process.memory_use import ProcessTree
from headrace.launch.results import learning_curve
from headrace.learner.batches.policy_returns import TABLE
from headrace.learner.progress import steady_rate

_EXPLAINED = "explained_variance"


def write(
    run: run_file.Run,
    out: Path,
    *,
    began: float,
    tree: ProcessTree,
    sampled: Sequence[tuple[float, float]],
    costs: PartCosts,
) -> dict[str, Any]:
    """Writes summary.json and curve.png; returns the summary. `began`: the run's clock at 0, by
    time.monotonic."""
    evaluations = learning_curve.read(out / "evaluations.jsonl")
    learner = _read(out / "learner.json")
    broker = merged([_read(path) for path in run_folder.broker_reports(out)])
    account = audit.read(out / "ledger", copies=broker.get("duplicates", 0))
    result = {
        "run": run.run.name,
        "env": run.env.id,
        "algorithm": run.algorithm.name,
        "seed": run.run.seed,
        "stop_reason": learner.get("stop_reason", "stopped"),
        "diagnosis": learner.get("diagnosis"),
        "wall_s": round(time.monotonic() - began, 3),
        "first_train_s": _rounded(learner.get("first_train_s")),
        "env_steps": account.env_steps,
        "trained_steps": learner.get("trained_steps", 0),
        "learner_steps": learner.get("learner_steps", 0),
        "version": learner.get("version", 0),
        "steps_per_s": round(steady_rate([mark for mark in sampled if mark[1] > 0]), 1),
        "trained_steps_per_s": round(learner.get("trained_steps_per_s", 0.0), 1),
        "episodes": learner.get("episodes", 0),
        "mean_return": _rounded(learner.get("mean_return")),
        "mean_length": _rounded(learner.get("mean_length")),
        "metrics": {name: round(mean, 6) for name, mean in learner.get("metrics", {}).items()},
        "population": learner.get("population"),
        "solved_at_s": _rounded(learner.get("solved_at_s")),
        "solved_at_steps": learner.get("solved_at_steps"),
        "evaluation": _evaluation(evaluations),
        "lag": learner.get("lag", {"mean": 0.0, "p95": 0.0, "max": 0.0}),
        "unrolls": {
            "generated": account.generated,
            **account.outcomes,
            "in_flight": account.in_flight,
        },
        "trained_quarters": [
            round(share, 4) for share in quarter_shares(account.trained_by_stream)
        ],
        "trained_twice": account.twice,
        "unaccounted": account.unaccounted(),
        "rolled_back": account.rolled_back,
        "nonfinite_steps": learner.get("nonfinite", 0),
        "wire_bytes_per_step": _per_step(broker, account),
        "cpu_s": round(ProcessTree.cpu_s(), 2),
        "costs": costs.of_step(
            learner.get("trained_steps", 0) / max(1, account.outcomes["trained"]),
            cores=runtime.cores(),
        ),
        "peak_rss_mb": round(tree.peak_mb, 1),
        "peak_rss_sum_mb": round(tree.peak_rss_sum_mb, 1),
        "phase_seconds": learner.get("phase_seconds", {}),
        "sampler_seconds": figures.sampler_seconds(broker.get("samplers", {})),
        "league": broker.get("league", []),
        "machine": learner.get("machine", {}),
    }
    history = learning_curve.read(out / "history.jsonl")
    result["explained_variance"] = next(
        (line[_EXPLAINED] for line in reversed(history) if _EXPLAINED in line), None
    )
    result["explain"] = explain.for_summary(figures.of(run, history, result))
    durable.write(out / "summary.json", json.dumps(result, indent=2) + "\n")
    if history:
        learning_curve.draw(
            history,
            run.stop.return_,
            f"{run.run.name}, seed {run.run.seed}",
            out / "curve.png",
            evaluations=evaluations,
        )
    return result


def status(result: dict[str, Any], stop: StopSection) -> int:
    """Returns the exit status of `headrace train`. A limit is a goal where there is no other."""
    known = {"return": runtime.OK, "diverged": runtime.DIVERGED}
    if done_at_limit(stop, result):
        known |= {"steps": runtime.OK, "seconds": runtime.OK}
    return known.get(result["stop_reason"], runtime.LIMIT)


def words(result: dict[str, Any], out: Path, stop: StopSection) -> str:
    """Returns the last lines that a user sees."""
    reasons = {
        "return": "solved",
        "steps": "step limit reached",
        "seconds": "time limit reached",
        "stopped": "stopped",
        "failed": "failed",
        "diverged": "diverged",
    }
    unrolls = ", ".join(f"{name} {n}" for name, n in result["unrolls"].items() if n)
    metrics = ", ".join(f"{name} {mean:.4g}" for name, mean in result["metrics"].items())
    # Only whole ones: one that was being written when its process was killed has a suffix.
    checkpoints = sorted(p for p in (out / "checkpoints").glob("*") if p.name.isdigit())
    picture = out / "curve.png"
    return "\n".join(
        (
            f"{reasons[result['stop_reason']]}: return {result['mean_return']} after"
            f" {result['trained_steps']:,} steps, {result['wall_s']:.1f} s"
            f" ({result['trained_steps_per_s']:,.0f} trained steps/s)",
            *([f"metrics: {metrics}"] if metrics else []),
            *([_population(result["population"], out)] if result["population"] else []),
            *(f"league: {_games(row)}" for row in result["league"]),
            f"unrolls: {unrolls}",
            *(f"  {line}" for line in fates.meanings(result["unrolls"])),
            *_best_words(result["evaluation"], out),
            *_goal_words(result, stop),
            f"checkpoint  {checkpoints[-1] if checkpoints else 'none'}",
            f"summary     {out / 'summary.json'}",
            f"curve       {picture if picture.exists() else 'none'}",
            *explain.last_lines(result["explain"], out),
        )
    )


def _population(told: Mapping[str, Any], out: Path) -> str:
    """Returns how the policies of a population compare."""
    return (
        f"population: policy {told['best']} is the best of {told['played']:,} that played, return"
        f" {told['best_return']:.4g}; median {told['median_return']:.4g}, least"
        f" {told['least_return']:.4g}; all in {out / TABLE}"
    )


def _games(row: Mapping[str, Any]) -> str:
    """Returns how the games with one opponent of the league ended."""
    ends = ", ".join(f"{row[how]:,} {how}" for how in GAMES)
    name = "weights of before" if row["opponent"] == PAST else row["opponent"]
    return (
        f"{name}: {ends}; of late {row['points']:.0%} of the points, rating"
        f" {row['rating']:+.0f} ({row['low']:+.0f} to {row['high']:+.0f})"
    )


def done_at_limit(stop: StopSection, result: dict[str, Any]) -> bool:
    """Tells whether a run that ended by a limit did what it was for: to train so long, or to reach
    the goal in an evaluation, of the last weights perhaps."""
    if stop.return_ is None:
        return bool(result["trained_steps"])
    return _goal_evaluation(result["evaluation"], stop) is not None


def _goal_evaluation(evaluation: dict[str, Any] | None, stop: StopSection) -> dict[str, Any] | None:
    """Returns the evaluation that reached the goal; None = none did. Where training episodes should
    have, which explore, the low end of its interval must have."""
    key = "low" if stop.metric == "training" else stop.evaluated
    if stop.return_ is None or evaluation is None:
        return None
    for line in (evaluation["best"], evaluation["last"]):
        if (reached := line.get(key)) is not None and reached >= stop.return_:
            return line  # type: ignore[no-any-return]
    return None


def _goal_words(result: dict[str, Any], stop: StopSection) -> list[str]:
    line = _goal_evaluation(result["evaluation"], stop)
    if line is None or result["stop_reason"] not in ("steps", "seconds"):
        return []
    return [
        f"goal        stop.return = {stop.return_:g} is reached by the evaluation of version"
        f" {line['version']}"
    ]


def _evaluation(lines: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Returns the last one, and the best: of equal means the newer, as its weights are the ones
    kept."""
    if not lines:
        return None
    return {"last": lines[-1], "best": max(reversed(lines), key=lambda line: line["mean"])}


def _best_words(evaluation: dict[str, Any] | None, out: Path) -> list[str]:
    if evaluation is None:
        return []
    best = evaluation["best"]
    spread = "" if best["low"] is None else f" ({best['low']:.1f} to {best['high']:.1f})"
    kept = out / "best" / f"{best['version']:012d}"
    lines = [
        f"evaluation: best return {best['mean']:.1f}{spread},"
        f" {best['episodes']} episodes of version {best['version']}",
        f"best        {kept if kept.exists() else 'not kept'}",
    ]
    last = evaluation["last"]
    if None not in (best["low"], last["high"]) and last["high"] < best["low"]:  # no overlap
        lines.append(
            f"            the last evaluation is well below it: return {last['mean']:.1f}"
            f" ({last['low']:.1f} to {last['high']:.1f}), version {last['version']}"
        )
    return lines


def _per_step(broker: dict[str, Any], account: audit.Account) -> float | None:
    sent = broker.get("unroll_bytes")
    return round(sent / account.env_steps, 1) if sent and account.env_steps else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _read(path: Path) -> dict[str, Any]:
    """Returns a process's report; {} when it was killed before or while it wrote."""
    try:
        report = json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return {}
    return report if isinstance(report, dict) else {}
