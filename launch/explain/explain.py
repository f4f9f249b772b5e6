"""`headrace explain RUN_DIR|--broker`: what holds a run back, the first thing first, and what to
set."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.broker import durable
from headrace.launch.config import run_file, starts
from headrace.launch.explain import figures as run_figures
from headrace.launch.explain import learning, symptoms, throughput
from headrace.launch.explain.figures import Figures
from headrace.launch.explain.finding import Finding
from headrace.launch.process import runtime
from headrace.launch.writing import writing

_NOTHING = "nothing stands out"
_UNTRAINED = "nothing was trained"
_SHORT = "the run is too short to tell"
_ELSEWHERE = "of a run that goes on, headrace explain --broker tells where the samplers' time goes"
_MOST_LAST = 3
_LEAST_SHOWN = 0.01  # of a process's time


def explain(folder: Path, *, apply: Path | None) -> int:
    """Prints what holds the run back; with `apply` writes the run with the first remedy. Returns
    the exit status."""
    figures = run_figures.read(folder)
    found = findings(figures)
    print("\n".join(lines(figures, found) + [_ELSEWHERE] * (not figures.samplers)))  # noqa: T201
    if apply is not None:
        print(_apply(folder, apply, found))  # noqa: T201
    return runtime.OK


def findings(figures: Figures) -> list[Finding]:
    """Returns what holds the run back, the first thing first."""
    found = learning.find(figures) if figures.tells_of_learning else []
    last = symptoms.find(figures) if figures.tells_of_learning and not found else []
    return found + (throughput.find(figures) if figures.tells_of_time else []) + last


def lines(figures: Figures, found: list[Finding]) -> list[str]:
    """Returns the findings, and where the time went."""
    told = [f"{number}. {finding.words()}" for number, finding in enumerate(found, 1)]
    if not told:
        long_enough = figures.tells_of_learning or figures.solved
        told = [_NOTHING if long_enough else _SHORT if figures.lines else _UNTRAINED]
    told.append(f"learner   {_shares(figures.learner) or 'not known yet'}")
    told.append(f"samplers  {_shares(_parts(figures.samplers)) or 'not known yet'}")
    return told


def for_summary(figures: Figures) -> list[dict[str, Any]]:
    """Returns the findings as they stand in summary.json."""
    return [
        {"name": one.name, "words": one.words(), "sets": list(one.sets), "gain": one.gain}
        for one in findings(figures)
    ]


def last_lines(found: Sequence[Mapping[str, Any]], folder: Path) -> list[str]:
    """Returns the first of a summary's findings, for the end of a run."""
    told = [one["words"] for one in found[:_MOST_LAST]]
    if len(found) > _MOST_LAST:
        told[-1] += f"; headrace explain {folder} says more"
    return [f"{'' if number else 'explain':12}{words}" for number, words in enumerate(told)]


def _parts(samplers: Mapping[str, float]) -> dict[str, float]:
    """Returns the parts of the samplers' time that do not overlap."""
    parts = {name: share for name, share in samplers.items() if name not in ("all", "environment")}
    rest = 1 - sum(parts.values())
    return parts | {"the rest": rest} if parts else {}


def _shares(parts: Mapping[str, float]) -> str:
    shown = sorted(parts.items(), key=lambda part: -part[1])
    words = [f"{name.replace('_', ' ')} {100 * share:.0f} %" for name, share in shown]
    return ", ".join(words[: sum(share >= _LEAST_SHOWN for _, share in shown)])


def _apply(folder: Path, to: Path, found: list[Finding]) -> str:
    """Writes the run as the first finding with settings would have it; returns what was done."""
    finding = next((one for one in found if one.sets), None)
    if finding is None:
        return f"{to} is not written: there is nothing to set"
    run = starts.load_kept(folder, finding.sets)
    head = f"# The run of {folder} with {' '.join(finding.sets)}: {finding.what}."
    with writing(to):
        durable.write(to, run_file.effective(run, head=head))
    return f"{to}: the run with {' '.join(finding.sets)}; train it: headrace train {to}"
