"""The page of a search: its trials, what each cost, and which settings mattered."""

import html
import warnings
from collections.abc import Sequence
from pathlib import Path

import optuna
from optuna.importance import PedAnovaImportanceEvaluator
from optuna.trial import FrozenTrial, TrialState

from headrace.broker import durable
from headrace.launch.results import plots
from headrace.launch.results.text_table import columns
from headrace.launch.search.metric import Metric
from headrace.launch.writing import writing

NAME = "search.html"
_LEAST_TRIALS = 8  # that got there, to say which settings mattered
_STATES = {TrialState.COMPLETE: "", TrialState.PRUNED: "given up", TrialState.FAIL: "failed"}


def write(out: Path, ended: Sequence[FrozenTrial], metric: Metric) -> None:
    """Writes the page into the search's folder."""
    with writing(out / NAME):
        durable.write(out / NAME, render(ended, metric))


def render(ended: Sequence[FrozenTrial], metric: Metric) -> str:
    """Returns the page, which needs no other file."""
    got_there = ranked(ended, metric)
    parts = [f"<h1>{html.escape(metric.name)} of {len(ended)} trials</h1>"]
    if got_there:
        parts.append(_svg(ended, got_there, metric))
    parts.append(f"<h2>Which settings mattered</h2><pre>{_importance(got_there, metric)}</pre>")
    parts.append(f"<h2>Trials</h2><pre>{html.escape(_table(ended, got_there, metric))}</pre>")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>A search</title>'
        "<style>body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem }"
        " svg { max-width: 100%; height: auto }</style></head>\n"
        f"<body>{''.join(parts)}</body></html>\n"
    )


def ranked(ended: Sequence[FrozenTrial], metric: Metric) -> list[FrozenTrial]:
    """Returns the trials that got there, the best first."""
    sign = 1 if metric.less else -1
    there = [(t.value * sign, t.number, t) for t in ended if t.value is not None]
    return [trial for _, _, trial in sorted(there, key=lambda one: one[:2])]


def pareto(got_there: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Returns those than which none that is better was cheaper. `got_there`: the best first."""
    found: list[FrozenTrial] = []
    for trial in got_there:
        if not found or _cost(trial) < _cost(found[-1]):
            found.append(trial)
    return found


def _cost(trial: FrozenTrial) -> float:
    cost = trial.user_attrs.get("cost", 0.0)
    return float(cost)


def _importance(got_there: Sequence[FrozenTrial], metric: Metric) -> str:
    """Returns each setting's share in what tells good trials from bad ones (PED-ANOVA)."""
    if len(got_there) < _LEAST_TRIALS:
        return f"too few trials got there to say: {len(got_there)} of {_LEAST_TRIALS}"
    if len({trial.value for trial in got_there}) == 1:
        return "every trial that got there has the same value"
    every = optuna.create_study(direction="minimize" if metric.less else "maximize")
    for trial in got_there:
        every.add_trial(trial)
    with warnings.catch_warnings():  # of many equal values
        warnings.simplefilter("ignore")
        shares = optuna.importance.get_param_importances(
            every, evaluator=PedAnovaImportanceEvaluator()
        )
    whole = sum(shares.values()) or 1.0
    rows = [(key, f"{100 * share / whole:.0f} %") for key, share in shares.items()]
    return html.escape("\n".join(columns(rows, words=(0,))))


def _table(ended: Sequence[FrozenTrial], got_there: Sequence[FrozenTrial], metric: Metric) -> str:
    """Returns all trials, the best first, then those that did not get there."""
    front = {trial.number for trial in pareto(got_there)}
    rows = [("trial", metric.name, metric.cost_unit, "", "settings")]
    for trial in (*got_there, *(t for t in ended if t.value is None)):
        value = "-" if trial.value is None else f"{trial.value:,.6g}"
        note = "none better is cheaper" if trial.number in front else _STATES[trial.state]
        if parent := trial.user_attrs.get("parent"):
            note = f"{note}, from {parent}".removeprefix(", ")
        sets = " ".join(trial.user_attrs.get("sets", ())) or "as it is"
        rows.append((_name(trial), value, f"{_cost(trial):,.1f}", note, sets))
    return "\n".join(columns(rows, words=(0, 3, 4)))


def _name(trial: FrozenTrial) -> str:
    return str(trial.user_attrs.get("folder", trial.number))


def _svg(ended: Sequence[FrozenTrial], got_there: Sequence[FrozenTrial], metric: Metric) -> str:
    """Draws the values in the order of the trials, and over what they cost."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained")
    in_order = sorted(got_there, key=lambda trial: trial.number)
    left.plot([t.number for t in in_order], [t.value for t in in_order], "o")
    left.set(xlabel=f"trial, of {len(ended)}", ylabel=metric.name)
    right.plot([_cost(t) for t in got_there], [t.value for t in got_there], "o")
    front = pareto(got_there)
    right.plot([_cost(t) for t in front], [t.value for t in front], label="none better is cheaper")
    right.set(xlabel=f"cost, {metric.cost_unit}", ylabel=metric.name)
    right.legend()
    return plots.as_svg(figure)
