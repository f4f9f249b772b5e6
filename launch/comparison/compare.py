"""`headrace compare DIR...`: runs grouped by their settings, their seeds as repetitions."""

import csv
import html
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace.broker import durable
from headrace.launch.comparison import compare_figures
from headrace.launch.config import run_file, starts
from headrace.launch.process import runtime
from headrace.launch.results import learning_curve, plots
from headrace.launch.results.text_table import columns
from headrace.launch.writing import writing

# What a policy learns from. Another port or folder makes no other group.
_SECTIONS = ("env", "unroll", "model", "algorithm", "learner", "pacing", "actor", "stop")
# Those printed, and in the CSV after each the ends of its interval.
_PRINTED: Mapping[str, tuple[str, ...]] = {
    "group": (),
    "runs": (),
    "mean": ("low", "high"),
    "iqm": ("iqm_low", "iqm_high"),
    "steps_to_goal": (),
    "improvement": ("improvement_low", "improvement_high"),
}
_EQUAL = 1.05  # times as long at most: lengths that tell nothing apart
_COLUMNS = tuple(key for column, ends in _PRINTED.items() for key in (column, *ends))


@dataclass(frozen=True, slots=True)
class KeptRun:
    """Holds what is compared of one run."""

    env: str
    settings: Mapping[str, Any]  # by dotted key, of the sections that it learns by
    steps: Sequence[float]
    values: Sequence[float]
    solved_at_steps: float | None


Groups = Mapping[str, Sequence[KeptRun]]


def compare(
    folders: Sequence[Path], *, page: Path | None, table: Path | None, metric: str = "return"
) -> int:
    """Prints the table, and writes it as a page and as CSV where asked to; returns the exit
    status."""
    resolved = dict.fromkeys(folder.resolve() for folder in folders)
    groups = grouped([read(folder, metric) for folder in resolved])
    rows = [row(name, runs, next(iter(groups.values()))) for name, runs in groups.items()]
    if table is not None:
        _write(table, as_csv(rows))
    if page is not None:
        _write(page, as_html(groups, rows, metric))
    print(as_text(groups, rows))  # noqa: T201
    return runtime.OK


def read(folder: Path, metric: str = "return") -> KeptRun:
    """Reads a run's folder; ConfigError where it is none, or says nothing of the metric yet."""
    run = starts.load_kept(folder)
    if metric not in (known := learning_curve.known(run.env.metrics)):
        raise run_file.ConfigError(f"--metric {metric}: there are {', '.join(known)}")
    file, key = learning_curve.column(metric)
    points = [
        entry
        for entry in learning_curve.read(folder / file)
        if all(isinstance(entry.get(name), int | float) for name in (key, "trained_steps"))
    ]
    if not points:
        raise run_file.ConfigError(f"{folder} has no {metric} in its {file} yet")
    plain = run_file.to_dict(run)
    settings = _flat({section: plain[section] for section in _SECTIONS})
    return KeptRun(
        env=run.env.id,
        settings=settings,
        steps=[entry["trained_steps"] for entry in points],
        values=[entry[key] for entry in points],
        solved_at_steps=_solved_at(folder),
    )


def grouped(runs: Sequence[KeptRun]) -> dict[str, list[KeptRun]]:
    """Groups runs by their settings, named by what differs between them, in the order given."""
    envs = list(dict.fromkeys(run.env for run in runs))
    if len(envs) > 1:
        raise run_file.ConfigError(f"runs of different environments: {', '.join(envs)}")
    keys = sorted({key for run in runs for key in run.settings})
    differ = [k for k in keys if len({repr(run.settings.get(k)) for run in runs}) > 1]
    groups: dict[str, list[KeptRun]] = {}
    for run in runs:
        name = " ".join(f"{key}={run.settings.get(key, 'unset')}" for key in differ)
        groups.setdefault(name or "all runs", []).append(run)
    return groups


def row(name: str, runs: Sequence[KeptRun], first: Sequence[KeptRun]) -> dict[str, Any]:
    """Returns a group's line of the table; improvement is None for the first group itself."""
    finals, base = (
        np.asarray([run.values[-1] for run in group], dtype=np.float64) for group in (runs, first)
    )
    values = (
        name,
        len(runs),
        *_with_interval(compare_figures.mean, finals),
        *_with_interval(compare_figures.iqm, finals),
        compare_figures.median_steps([run.solved_at_steps for run in runs]),
        *(
            (None, None, None)
            if runs is first
            else _with_interval(compare_figures.improvement, finals, base)
        ),
    )
    return dict(zip(_COLUMNS, values, strict=True))


def as_text(groups: Groups, rows: Sequence[Mapping[str, Any]]) -> str:
    """Renders the table; notes say which intervals are missing, and that lengths differ."""
    cells = [tuple(_PRINTED), *(tuple(_cell(line, c) for c in _PRINTED) for line in rows)]
    lines = list(columns(cells, words=(0,)))
    if any(line["low"] is None for line in rows):
        lines.append("one run alone has no interval: train it with more seeds")
    ends = [run.steps[-1] for runs in groups.values() for run in runs]
    if max(ends) > _EQUAL * min(ends):
        span = f"{min(ends):,.0f} to {max(ends):,.0f}"
        lines.append(f"these runs end at {span} steps: their last values are not of equal training")
    return "\n".join(lines)


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_html(groups: Groups, rows: Sequence[Mapping[str, Any]], metric: str) -> str:
    """Renders one page that needs no other file."""
    table, drawn = html.escape(as_text(groups, rows)), _svg(groups, metric)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Runs compared</title>'
        f"</head>\n<body><h1>Runs compared</h1>{drawn}<pre>{table}</pre></body></html>\n"
    )


def _svg(groups: Groups, metric: str) -> str:
    """Draws each group's mean with its 95 % interval, as far as all its runs reach."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    for name, runs in groups.items():
        curve = compare_figures.shared_curve([(run.steps, run.values) for run in runs])
        if curve is None:
            axes.plot([], [], label=f"{name}: its runs have no steps in common")
            continue
        steps, values = curve
        (line,) = axes.plot(steps, values.mean(axis=0), label=f"{name} ({len(runs)} runs)")
        interval = compare_figures.bootstrap(compare_figures.mean, values)
        if interval is not None:
            axes.fill_between(steps, *interval, alpha=0.2, color=line.get_color())
    axes.set(xlabel="agent steps trained on", ylabel=metric)
    axes.legend()
    return plots.as_svg(figure)


def _with_interval(
    figure: Callable[..., Any], *groups: compare_figures.Floats
) -> tuple[float | None, ...]:
    found, interval = float(figure(*groups)), compare_figures.bootstrap(figure, *groups)
    return (found, None, None) if interval is None else (found, *map(float, interval))


def _cell(line: Mapping[str, Any], column: str) -> str:
    value, *ends = (line[key] for key in (column, *_PRINTED[column]))
    if value is None:
        return "-"
    text = f"{value:,.2f}" if isinstance(value, float) else str(value)
    return text if not ends or None in ends else f"{text} [{ends[0]:,.2f}, {ends[1]:,.2f}]"


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        nested = isinstance(value, dict)
        flat |= _flat(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return flat


def _solved_at(folder: Path) -> float | None:
    """Returns the steps to the goal; None = missed, or the run still goes on."""
    steps = learning_curve.summary(folder).get("solved_at_steps")
    return float(steps) if isinstance(steps, int | float) else None


def _write(file: Path, text: str) -> None:
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        durable.write(file, text)
