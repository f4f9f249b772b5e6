"""Makes what docs/zoo.md shows of measured runs: its table, and docs/pictures/zoo.svg.

python -m docs.zoo             both, from docs/zoo.csv
python -m docs.zoo RUN ...     the curves of these runs' folders into that file first
"""

import csv
import html
import itertools
import json
import re
import statistics
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from headrace.launch.bench.gates.learning_gates import GATES, Gate

DOCS = Path(__file__).parent
PAGE, CURVES, PICTURE = DOCS / "zoo.md", DOCS / "zoo.csv", DOCS / "pictures" / "zoo.svg"
ALGORITHMS = ("ppo", "appo", "impala")
_COLUMNS = ("run", "env", "algorithm", "seed", "solved", "steps", "mean_return")
BARE = "bare"
# By environment: the shipped run that is tuned for it, and what PPO of Stable-Baselines3 reaches in
# as many steps. MuJoCo: by the settings of its zoo, one agent, likeliest actions, in the version
# before (Hopper-v3 and so on). MinAtar, MiniGrid: measured here. docs/benchmarks.md says how and
# where from. None = nobody says what it reaches in so few steps.
TUNED: Mapping[str, tuple[str, float | None]] = {
    "HalfCheetah-v5": ("halfcheetah", 5819),
    "Hopper-v5": ("halfcheetah", 2410),
    "Walker2d-v5": ("halfcheetah", 3479),
    "Ant-v5": ("halfcheetah", 1327),
    "Swimmer-v5": ("halfcheetah", 282),
    "MinAtar/Asterix-v1": ("minatar", 6.0),
    "MinAtar/Breakout-v1": ("minatar", 10.9),
    "MinAtar/Freeway-v1": ("minatar", 55.7),
    "MinAtar/Seaquest-v1": ("minatar", 4.8),
    "MinAtar/SpaceInvaders-v1": ("minatar", 40.5),
    "minigrid:MiniGrid-LavaGapS5-v0": ("minatar", None),
    "minigrid:MiniGrid-Unlock-v0": ("minatar", None),
    "ALE/Breakout-v5": ("pong-ppo", None),
    "ALE/SpaceInvaders-v5": ("pong-ppo", None),
    "ALE/Qbert-v5": ("pong-ppo", None),
    "ALE/Pong-v5": ("pong-ppo", None),
}
_POINTS = 40  # of a curve
_TABLE = re.compile(r"(?<=<!-- table -->\n).*?(?=<!-- end -->)", re.DOTALL)
_TUNED = re.compile(r"(?<=<!-- tuned -->\n).*?(?=<!-- end -->)", re.DOTALL)
_WIDTH, _PANEL, _HEIGHT, _ACROSS = 900, 280, 150, 3
# Readable on white and on black, as docs/chart.py is.
_STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328 }
.quiet { fill: #59636e; font-size: 11px }
.goal { stroke: #9aa4af; stroke-dasharray: 4 4 }
path { fill: none; stroke-width: 1.4 }
.ppo { stroke: #b4610a } .appo { stroke: #1a7f64 } .impala { stroke: #3662d8 }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc }
  .quiet { fill: #9198a1 }
  .goal { stroke: #656c76 }
  .ppo { stroke: #e39a4b } .appo { stroke: #3fb68b } .impala { stroke: #7d9dff }
}
"""


class Run(NamedTuple):
    """One measured run."""

    run: str  # a shipped one; bare = the environment, the algorithm and nothing else
    env: str
    algorithm: str
    seed: int
    solved: int | None  # steps; None = not within those of the gate
    curve: tuple[tuple[int, float], ...]  # steps, mean return


def gate_of(env: str, algorithm: str) -> Gate:
    """Returns the gate that these runs stand for."""
    sets = (f"env.id={env}", f"algorithm.name={algorithm}")
    return next(gate for gate in GATES.values() if gate.run == "bare" and gate.sets[:2] == sets)


def read_folder(folder: Path) -> Run:
    """Returns the run of a folder, its curve thinned."""
    used = tomllib.loads((folder / "run.toml").read_text())
    summary = json.loads((folder / "summary.json").read_text())
    whole = list(_curve(folder, used["stop"]))
    every = max(1, len(whole) // _POINTS)
    thinned = (*whole[:-1:every], *whole[-1:])
    named = used["env"]["id"], used["algorithm"]["name"], used["run"]["seed"]
    return Run(used["run"]["name"], *named, summary["solved_at_steps"], thinned)


def _curve(folder: Path, stop: dict[str, Any]) -> Iterator[tuple[int, float]]:
    """Yields steps and mean return; of evaluations up to the goal, where they decide."""
    evaluated = stop["metric"] == "evaluation"
    name, key = ("evaluations.jsonl", "mean") if evaluated else ("history.jsonl", "mean_return")
    for line in map(json.loads, (folder / name).read_text().splitlines()):
        if line.get("trained_steps") and line.get(key) is not None:
            yield line["trained_steps"], round(line[key], 3)
            if evaluated and line[key] >= stop["return"]:
                return


def read_curves() -> list[Run]:
    """Returns the runs of the file."""
    with CURVES.open() as file:
        rows = list(csv.DictReader(file))
    named = itertools.groupby(rows, lambda row: tuple(row[key] for key in _COLUMNS[:5]))
    return [
        Run(
            run,
            env,
            algorithm,
            int(seed),
            int(solved) if solved else None,
            tuple((int(row["steps"]), float(row["mean_return"])) for row in of_one),
        )
        for (run, env, algorithm, seed, solved), of_one in named
    ]


def write_curves(runs: Sequence[Run]) -> None:
    """Writes the file, in the order of the gates and of the references."""
    order = [(BARE, *gate) for gate in _gates()]
    order += [(run, env, "ppo") for env, (run, _) in TUNED.items()]
    with CURVES.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(_COLUMNS)
        for run in sorted(runs, key=lambda one: (order.index(one[:3]), one.seed)):
            solved = "" if run.solved is None else run.solved
            rows.writerows((*run[:4], solved, *point) for point in run.curve)


def _gates() -> Iterator[tuple[str, str]]:
    """Yields environment and algorithm of each gate of bare runs."""
    for gate in GATES.values():
        if gate.run == "bare":
            env, algorithm = (value.partition("=")[2] for value in gate.sets[:2])
            yield env, algorithm


def table(runs: Sequence[Run]) -> str:
    """Returns the table in Markdown: steps to the goal, by seed."""
    lines = [
        f"| environment | goal, within | {' | '.join(f'`{name}`' for name in ALGORITHMS)} |",
        "|---|---|---|---|---|",
    ]
    for env in dict.fromkeys(env for env, _ in _gates()):
        gate = gate_of(env, "ppo")
        cells = [
            _cell([run for run in runs if run[:3] == (BARE, env, name)]) for name in ALGORITHMS
        ]
        lines.append(f"| `{env}` | {gate.goal:g}, {gate.steps // 1000:,}k | {' | '.join(cells)} |")
    return "\n".join((*lines, ""))


def tuned_table(runs: Sequence[Run]) -> str:
    """Returns the table of tuned runs in Markdown: the mean return at the end, by seed."""
    lines = ["| environment | run, steps | seeds 1, 2, 3 | reference |", "|---|---|---|---|"]
    for env, (name, reference) in TUNED.items():
        of_env = [run for run in runs if run[:2] == (name, env)]
        if of_env:
            steps = max(run.curve[-1][0] for run in of_env)
            ends = ", ".join(_end(run.curve[-1][1]) for run in of_env)
            told = "" if reference is None else f"{reference:,}"
            lines.append(f"| `{env}` | `{name}`, {steps // 1000:,}k | {ends} | {told} |")
    return "\n".join((*lines, ""))


def _end(mean: float) -> str:
    if abs(mean) < 1:
        return f"{mean:.2f}"
    return f"{mean:,.0f}" if mean >= 100 else f"{mean:.1f}"


def _cell(runs: Sequence[Run]) -> str:
    """Returns the steps of each seed, and their median if all of several reached the goal."""
    if not runs:
        return ""
    cells = [
        f"{run.solved / 1000:.0f}k"
        if run.solved is not None
        else f"not ({run.curve[-1][1]:.4g} at {run.curve[-1][0] / 1000:.0f}k)"
        for run in runs
    ]
    solved = [run.solved for run in runs if run.solved is not None]
    whole = len(solved) == len(runs) > 2
    median = f"**{statistics.median(solved) / 1000:.0f}k**: " if whole else ""
    return median + ", ".join(cells)


def drawn(runs: Sequence[Run]) -> str:
    """Returns the curves as SVG, a panel for each environment."""
    panels = {
        f"{env}, {name}" if name != BARE else env: (goal, found)
        for name, env, goal in _panels()
        if (found := [run for run in runs if run[:2] == (name, env)])
    }
    height = 30 + (_HEIGHT + 50) * -(-len(panels) // _ACROSS)
    words = html.escape(f"Mean return by trained steps of {'; '.join(panels)}")
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img"'
        f' aria-label="{words}">',
        f"<style>{_STYLE}</style>",
    ]
    for place, name in enumerate(ALGORITHMS):
        x = 110 * place
        parts.append(
            f'<path class="{name}" d="M{x} 12h24"/><text x="{x + 30}" y="16">{name}</text>'
        )
    for place, (title, (goal, found)) in enumerate(panels.items()):
        down, across = divmod(place, _ACROSS)
        left, top = across * (_PANEL + 30), 60 + down * (_HEIGHT + 50)
        parts += _panel(title, goal, found, left, top)
    return "\n".join((*parts, "</svg>", ""))


def _panels() -> Iterator[tuple[str, str, float | None]]:
    """Yields run, environment and goal of each panel; None = there is none."""
    for env in dict.fromkeys(env for env, _ in _gates()):
        yield BARE, env, gate_of(env, "ppo").goal
    for env, (name, reference) in TUNED.items():
        yield name, env, reference


def _panel(
    title: str, goal: float | None, runs: Sequence[Run], left: int, top: int
) -> Iterator[str]:
    """Yields an environment's curves; the dashed line is the goal."""
    numbers = [mean for run in runs for _, mean in run.curve] + ([] if goal is None else [goal])
    low, high = min(numbers), max(numbers)
    last = max(run.curve[-1][0] for run in runs)

    def y(mean: float) -> float:
        return top + _HEIGHT * (1 - (mean - low) / (high - low))

    yield f'<text x="{left}" y="{top - 10}">{html.escape(title.rpartition(":")[2])}</text>'
    right = f'x="{left + _PANEL}" y="{top - 10}" text-anchor="end"'
    yield f'<text class="quiet" {right}>{last // 1000}k steps</text>'
    if goal is not None:
        yield f'<path class="goal" d="M{left} {y(goal):.1f}h{_PANEL}"/>'
    for run in runs:
        points = " ".join(
            f"{left + _PANEL * steps / last:.1f},{y(mean):.1f}" for steps, mean in run.curve
        )
        yield f'<path class="{run.algorithm}" d="M{points}"/>'
    yield f'<text class="quiet" x="{left}" y="{top + _HEIGHT + 14}">{low:.4g} to {high:.4g}</text>'


def main(folders: Sequence[str]) -> int:
    """Adds the runs of these folders, in the place of those measured before; makes all anew."""
    if folders:
        new = [read_folder(Path(folder)) for folder in folders]
        kept = (
            [run for run in read_curves() if run[:4] not in {one[:4] for one in new}]
            if CURVES.is_file()
            else []
        )
        write_curves([*kept, *new])
    runs = read_curves()
    PICTURE.write_text(drawn(runs))
    page = _TABLE.sub(lambda _: table(runs), PAGE.read_text())
    PAGE.write_text(_TUNED.sub(lambda _: tuned_table(runs), page))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
