"""Reads what a run has written of its learning, and draws its learning curve."""

import bisect
import contextlib
import io
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.broker import durable

Lines = Sequence[Mapping[str, Any]]

HISTORY, EVALUATIONS = "history.jsonl", "evaluations.jsonl"
_TAIL_BYTES = 2**16  # of a history's end: hundreds of entries


def read(file: Path) -> list[dict[str, Any]]:
    """Reads the run's history (four entries a second) or its evaluations; a line torn by a kill is
    left out."""
    if not file.exists():
        return []
    entries = []
    for line in file.read_text().splitlines():
        try:
            entries.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return [entry for entry in entries if isinstance(entry, dict)]


def known(metrics: Sequence[str]) -> tuple[str, ...]:
    """Returns what `column` can find of a run with these env.metrics."""
    return ("evaluation", "return", *metrics, *(f"evaluation.{name}" for name in metrics))


def column(metric: str) -> tuple[str, str]:
    """Returns the file of a run's folder, and the column there, that has its evaluation, its
    training return ("return"), NAME of env.metrics, or that in evaluations ("evaluation.NAME")."""
    returns = {"return": (HISTORY, "mean_return"), "evaluation": (EVALUATIONS, "mean")}
    of_evaluations = metric.removeprefix("evaluation.")
    file = HISTORY if of_evaluations == metric else EVALUATIONS
    return returns.get(metric, (file, f"metric.{of_evaluations}"))


def summary(folder: Path) -> dict[str, Any]:
    """Reads a run's summary; {} = it goes on, or what is there is none."""
    try:
        found = json.loads((folder / "summary.json").read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def ended_at(file: Path) -> float:
    """Returns the run's clock at the last entry of its history; 0 = there is none. Reads only the
    end."""
    try:
        return float(last(file, "t")["t"])
    except (KeyError, ValueError, TypeError):
        return 0.0


def last(file: Path, key: str) -> dict[str, Any]:
    """Returns the last entry that has this key; {} = there is none. Reads only the end."""
    try:
        with file.open("rb") as history:
            history.seek(max(0, history.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = history.read().splitlines()
    except FileNotFoundError:
        return {}
    for line in reversed(lines):
        with contextlib.suppress(ValueError):  # torn by a kill
            entry = json.loads(line)
            if isinstance(entry, dict) and key in entry:
                return entry
    return {}


def draw(
    history: Lines, target: float | None, title: str, to: Path, *, evaluations: Lines = ()
) -> None:
    """Draws training returns over steps, and evaluations as points with their confidence
    intervals."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    draw_on(axes, history, target, evaluations=evaluations)
    axes.set(title=title)
    axes.grid(alpha=0.3)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=120, format="png")
    pyplot.close(figure)
    durable.write(to, drawn.getvalue())


def draw_on(axes: Any, history: Lines, target: float | None, *, evaluations: Lines = ()) -> None:
    """Draws the curve on the given axes."""
    points = [entry for entry in history if entry.get("mean_return") is not None]
    axes.plot(
        [p["trained_steps"] for p in points],
        [p["mean_return"] for p in points],
        linewidth=1.5,
        label="training, mean of the latest episodes",
    )
    steps, means, spans = evaluation_marks(history, evaluations)
    if steps:
        axes.errorbar(
            steps,
            means,
            yerr=spans,
            fmt="o",
            markersize=3,
            linewidth=1,
            capsize=2,
            label="evaluation, 95 % interval of the mean",
        )
        axes.legend(loc="lower right")
    if target is not None:
        axes.axhline(target, linestyle="--", linewidth=1, color="gray")
        axes.text(
            0.01, target, f"goal {target:g}", transform=axes.get_yaxis_transform(), va="bottom"
        )
    label = "return" if steps else "return, mean of the latest episodes"
    axes.set(xlabel="agent steps trained on", ylabel=label)


def evaluation_marks(
    history: Lines, evaluations: Lines
) -> tuple[list[float], list[float], tuple[list[float], list[float]]]:
    """Returns the steps of evaluations, their means, and how far their intervals reach down and up.

    The steps behind a version come from the history, which is exact; the evaluator's own number is
    the fallback.
    """
    known = _known(history)
    steps: list[float] = []
    means: list[float] = []
    down: list[float] = []
    up: list[float] = []
    for entry in evaluations:
        at = _steps(known, entry["version"], entry.get("trained_steps"))
        if at is None:
            continue
        mean, low, high = entry["mean"], entry.get("low"), entry.get("high")
        steps.append(at)
        means.append(mean)
        down.append(0.0 if low is None else mean - low)
        up.append(0.0 if high is None else high - mean)
    return steps, means, (down, up)


def evaluated(history: Lines, evaluations: Lines, column: str) -> list[tuple[float, float]]:
    """Returns the steps of the evaluations that have this column, and what stands there."""
    known = _known(history)
    found = (
        (_steps(known, entry["version"], entry.get("trained_steps")), entry[column])
        for entry in evaluations
        if column in entry
    )
    return [(steps, value) for steps, value in found if steps is not None]


def _known(history: Lines) -> list[tuple[int, int]]:
    return sorted((e["version"], e["trained_steps"]) for e in history if "version" in e)


def _steps(known: Sequence[tuple[int, int]], version: int, heard: int | None) -> float | None:
    """Interpolates linearly between the versions in the history; None = neither it nor `heard`
    knows."""
    at = bisect.bisect_left(known, (version, 0))
    if at == len(known):
        return heard if heard is not None else (known[-1][1] if known else None)
    (after, most), (before, least) = known[at], known[at - 1] if at else (0, 0)
    if after == before:
        return most
    return least + (most - least) * (version - before) / (after - before)
