"""The figures that a run is judged by, and how they are read from its folder; every share is of one
process's time.

history.jsonl   what learning looks like, and where the learner's time went
summary.json    where the samplers' time went, once the run has ended
"""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.broker.sampler_figures import WAITS
from headrace.launch.config import run_file, starts
from headrace.launch.results import learning_curve

# What is known from less is chance: of where time goes, of how it learns.
_TIMED_S, _TIMED_LINES = 6.0, 2
_LEAST_S, _LEAST_LINES = 3.0, 8
_MOST_LINES = 4000
_TIME = "time_"


@dataclass(frozen=True, slots=True)
class Figures:
    """Holds what a run has told of itself."""

    run: run_file.Run
    lines: Sequence[Mapping[str, float]]  # of the history, with figures of training
    learner: Mapping[str, float]  # share of its time by phase, as "wait"; {} = not known
    samplers: Mapping[str, float]  # share of their time, as "environment"; {} = not known yet
    outcomes: Mapping[str, float] = field(default_factory=dict)  # unrolls by their outcome
    cores: int = 0  # of the machine; 0 = not known
    cores_busy: float = 0.0  # mean while it trained
    rate: float = 0.0  # agent steps trained on a second; 0 = one version or none is trained
    played: float = 0.0  # agent steps that reached the broker a second; 0 = not known
    step_s: float = 0.0  # of an environment's step, the mean; 0 = not known
    # From when a version is at the broker until samplers act with it, the mean; 0 = not known.
    line_s: float = 0.0
    unroll_bytes_s: float = 0.0  # from the samplers a second
    weights_bytes: float = 0.0  # of a version
    seconds: float = 0.0  # that it trained for
    solved: bool = False
    nonfinite: int = 0  # steps skipped

    @property
    def tells_of_time(self) -> bool:
        """Tells whether it is long enough to say where the time goes."""
        return self.seconds >= _TIMED_S and len(self.lines) >= _TIMED_LINES

    @property
    def tells_of_learning(self) -> bool:
        """Tells whether it is long enough to say how it learns."""
        return self.seconds >= _LEAST_S and len(self.lines) >= _LEAST_LINES

    def late(self, column: str) -> list[float]:
        """Returns a column of the second half of the history."""
        return self.column(column)[len(self.lines) // 2 :]

    def column(self, name: str) -> list[float]:
        """Returns a column of the whole history; of lines without it nothing."""
        return [line[name] for line in self.lines if name in line]

    def median(self, column: str) -> float:
        """Returns the median of the second half; nan = there is none."""
        values = self.late(column)
        return statistics.median(values) if values else math.nan


def read(folder: Path) -> Figures:
    """Reads a run's folder; ConfigError where it is none, or has trained nothing yet."""
    run, summary = starts.load_kept(folder), learning_curve.summary(folder)
    found = of(run, learning_curve.read(folder / "history.jsonl"), summary)
    if not (found.lines or summary):
        raise run_file.ConfigError(f"{folder} has no figures of training in its history.jsonl yet")
    return found


def of(
    run: run_file.Run, history: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]
) -> Figures:
    """Returns the figures of a history and a summary; {} = there is none yet."""
    # A week has two million lines, and so many tell the same.
    history = [numbers(line) for line in history[:: max(1, len(history) // _MOST_LINES)]]
    lines = [line for line in history if tells_of_training(line)]
    told, spent = numbers(summary), _table(summary, "sampler_seconds")
    phases = _table(summary, "phase_seconds")
    first, wall = told.get("first_train_s", 0.0), told.get("wall_s", 0.0)
    return Figures(
        run=run,
        lines=lines,
        learner=learner_shares(lines) or _shares(phases if "first_train_s" in told else {}),
        samplers=sampler_shares(spent),
        outcomes=_table(summary, "unrolls"),
        cores=int(_table(summary, "machine").get("cores", 0)),
        # Starting takes processor time, too, about as much as it takes time.
        cores_busy=max(0.0, told.get("cpu_s", 0.0) - first) / max(wall - first, 1.0),
        rate=training_rate(lines),
        played=told.get("steps_per_s", 0.0),
        step_s=spent.get("environment", 0.0) / max(1.0, told.get("env_steps", math.inf)),
        seconds=_trained_for(told, lines),
        solved=summary.get("stop_reason") == "return",
        nonfinite=int(told.get("nonfinite_steps", 0)),
    )


def tells_of_training(line: Mapping[str, float]) -> bool:
    """Tells whether a line of the history has figures of training."""
    return {"t", "entropy", "trained_steps"} <= line.keys()


def sampler_seconds(totals: Mapping[str, float]) -> dict[str, float]:
    """Returns where the time of all samplers went, by the figures of their beats; {} = no beat
    came."""
    named = {
        "all": "wall_s",
        "environment": "env_s",
        "environment_on_loop": "loop_env_s",
        "network": "inference_s",
        **{f"wait_{why}": f"wait_{why}_s" for why in WAITS},
    }
    return {name: round(totals.get(key, 0.0), 3) for name, key in named.items() if totals}


def _trained_for(summary: Mapping[str, float], lines: Sequence[Mapping[str, float]]) -> float:
    if "wall_s" in summary:  # whoever never began has trained for no time
        return summary["wall_s"] - summary.get("first_train_s", summary["wall_s"])
    return lines[-1]["t"] - lines[0]["t"] if lines else 0.0


def learner_shares(lines: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns where the learner's time went, by the time between the lines."""
    spent: dict[str, float] = {}
    for before, line in itertools.pairwise(lines):
        for name, share in line.items():
            if name.startswith(_TIME):
                phase = name.removeprefix(_TIME)
                spent[phase] = spent.get(phase, 0.0) + share * max(0.0, line["t"] - before["t"])
    return _shares(spent)


def _shares(spent: Mapping[str, float]) -> dict[str, float]:
    whole = sum(spent.values())
    return {phase: seconds / whole for phase, seconds in spent.items()} if whole > 0 else {}


def sampler_shares(seconds: Mapping[str, float]) -> dict[str, float]:
    """Returns where the samplers' time went. `seconds`: as `sampler_seconds` names them."""
    # Of a sampler that was ended while it played, the last beat may not say "all".
    parts = sum(spent for name, spent in seconds.items() if name not in ("all", "environment"))
    whole = max(seconds.get("all", 0.0), parts)
    return {name: spent / whole for name, spent in seconds.items()} if whole > 0 else {}


def training_rate(lines: Sequence[Mapping[str, float]]) -> float:
    """Returns the agent steps trained on a second."""
    if not lines:
        return 0.0
    first, last = lines[0], lines[-1]
    seconds = last["t"] - first["t"]
    return (last["trained_steps"] - first["trained_steps"]) / seconds if seconds > 0 else 0.0


def _table(summary: Mapping[str, Any], name: str) -> dict[str, float]:
    found = summary.get(name)
    return numbers(found) if isinstance(found, dict) else {}


def numbers(table: Mapping[str, Any]) -> dict[str, float]:
    """Returns the finite numbers of a table; whoever wrote it may have written anything."""
    return {
        name: float(value)
        for name, value in table.items()
        if isinstance(value, int | float) and abs(value) < 1e15 and math.isfinite(value)
    }
