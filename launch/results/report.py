"""`headrace report RUN_DIR`: a self-contained page about a run, and its pictures."""

import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from headrace.broker import durable
from headrace.broker.journal.fates import OUTCOMES
from headrace.broker.league_results import GAMES, PAST
from headrace.launch.config import run_file, starts
from headrace.launch.process import runtime
from headrace.launch.results import learning_curve, plots
from headrace.launch.writing import writing

RATINGS = "league.json"  # what headrace rate has found, in the run's folder
_OUTCOMES = {**OUTCOMES, "in_flight": "what no process knows the end of"}
_ENDS = {
    "return": "solved",
    "steps": "ended at its step limit",
    "seconds": "ended at its time limit",
    "stopped": "stopped",
    "failed": "failed",
    "diverged": "diverged",
}

_QUARTERS = ("the least", "the second quarter", "the third quarter", "the most")

_STYLE = """
:root { color-scheme: light dark; --soft: #80889033; --mark: #3b82c4; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { margin-bottom: 0; } h2 { margin-top: 2.2rem; font-size: 1.15rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(9rem, 1fr)); gap: .8rem; }
.tile { border: 1px solid var(--soft); border-radius: .4rem; padding: .5rem .8rem; }
.tile b { display: block; font-size: 1.3rem; }
.small { display: grid; grid-template-columns: repeat(auto-fill, minmax(17rem, 1fr)); gap: .5rem; }
figure { margin: 0; } svg { width: 100%; height: auto; }
table { border-collapse: collapse; } td, th { padding: .15rem .8rem .15rem 0; text-align: left; }
td.n { text-align: right; font-variant-numeric: tabular-nums; }
.bar { background: var(--mark); height: .7rem; min-width: 1px; }
pre { background: var(--soft); padding: 1rem; overflow-x: auto; border-radius: .4rem; }
"""


def report(run_dir: Path, *, to: Path | None) -> int:
    """Writes the page, and its pictures into a folder of the same name; returns the exit status."""
    run, summary = starts.load_kept(run_dir), _json(run_dir / "summary.json")
    history = _thinned([e for e in learning_curve.read(run_dir / "history.jsonl") if "t" in e])
    if not history and not summary:
        raise run_file.ConfigError(
            f"{run_dir} has neither history.jsonl nor summary.json yet: nothing to report"
        )
    page = to or run_dir / "report.html"
    drawn = _draw_plots(run, history, learning_curve.read(run_dir / "evaluations.jsonl"))
    with writing(page, "choose another place with --to"):
        page.parent.mkdir(parents=True, exist_ok=True)
        plots.save(drawn, page.with_suffix(""))
        toml, rated = (run_dir / starts.RUN).read_text(), _json(run_dir / RATINGS)
        durable.write(page, render(run, summary, drawn, toml, rated))
    print(page)  # noqa: T201
    return runtime.OK


def _thinned(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Keeps about 1000 entries: that is the width of a picture, and a week has two million
    entries."""
    every = max(1, len(history) // 1000)
    return history[::every]


def _json(path: Path) -> dict[str, Any]:
    """Returns what the run's folder holds of this; empty = nothing yet."""
    try:
        found = json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return {}
    return found if isinstance(found, dict) else {}


def _draw_plots(
    run: run_file.Run, history: Sequence[dict[str, Any]], evaluations: Sequence[dict[str, Any]]
) -> list[plots.Plot]:
    made: list[plots.Plot | None] = []
    if history:
        made.append(
            plots.returns(
                lambda axes: learning_curve.draw_on(
                    axes, history, run.stop.return_, evaluations=evaluations
                )
            )
        )
    made += [plots.throughput(history), plots.lag(history, run.pacing.max_lag)]
    made += [plots.length(history), *plots.metrics(history, evaluations), *plots.losses(history)]
    return [plot for plot in made if plot is not None]


def render(
    run: run_file.Run,
    summary: Mapping[str, Any],
    drawn: Sequence[plots.Plot],
    toml: str,
    rated: Mapping[str, Any] = MappingProxyType({}),
) -> str:
    """Renders the page. Text written by people is escaped; the pictures are our own SVG."""
    name = html.escape(run.run.name)
    large = [plot for plot in drawn if plot.name in ("curve", "throughput", "lag")]
    own = [plot for plot in drawn if plot.name.startswith(("metric-", "length"))]
    small = [plot for plot in drawn if plot not in large and plot not in own]
    parts = [
        f"<h1>{name}</h1><p>{_sentence(run, summary)}</p>",
        _tiles(summary),
        *(f"<h2>{html.escape(plot.title)}</h2><figure>{plot.svg}</figure>" for plot in large),
        _section("Episodes", "".join(map(_small, own)), "small"),
        _section("The learner's steps", "".join(map(_small, small)), "small"),
        _section("Games of the league", _games(summary.get("league"))),
        _section("Ratings", _ratings(rated)),
        _outcomes(summary),
        _shares(summary),
        _phases(summary),
        _section("Machine", _table(summary.get("machine", {}))),
        _section("Settings", f"<pre>{html.escape(toml)}</pre>"),
    ]
    body = "\n".join(part for part in parts if part)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{name}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>\n'
        f"<body>\n{body}\n</body></html>\n"
    )


def _sentence(run: run_file.Run, summary: Mapping[str, Any]) -> str:
    what = f"{run.env.id} by {run.algorithm.name.upper()}, seed {run.run.seed}"
    if not summary:
        return html.escape(f"{what}: no summary yet, it still runs or was killed.")
    ended = _ENDS.get(summary["stop_reason"], summary["stop_reason"])
    return html.escape(f"{what}: {ended} after {summary['wall_s']:,.0f} s.")


def _tiles(summary: Mapping[str, Any]) -> str:
    if not summary:
        return ""
    lag = summary["lag"]
    shown = {
        "return": _number(summary["mean_return"]),
        "steps an episode": _number(summary.get("mean_length")),
        **{html.escape(name): f"{mean:,.4g}" for name, mean in summary.get("metrics", {}).items()},
        "steps trained": f"{summary['trained_steps']:,}",
        "steps a second": f"{summary['trained_steps_per_s']:,.0f}",
        "versions": f"{summary['version']:,}",
        "lag, mean / largest": f"{lag['mean']:g} / {lag['max']:g}",
        "memory, MB": f"{summary['peak_rss_mb']:,.0f}",
        "CPU seconds": f"{summary['cpu_s']:,.0f}",
        "not accounted for": str(summary["unaccounted"]),
    }
    if costs := summary.get("costs"):
        each = (f"{1e6 * costs[part]:.3g}" for part in ("sampler_s", "learner_s", "broker_s"))
        shown["us of a core a step: samplers / learner / broker"] = " / ".join(each)
    tiles = (f'<div class="tile"><b>{value}</b>{name}</div>' for name, value in shown.items())
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _games(league: Any) -> str:
    """Renders how games with each opponent ended, and the ratings above them."""
    if not league or not isinstance(league, list):  # 0.1 had sums over all opponents
        return ""
    cells = [
        [
            "weights of before" if row["opponent"] == PAST else row["opponent"],
            *(f"{row[how]:,}" for how in GAMES),
            f"{row['points']:.0%}",
            f"{row['rating']:+.0f}",
            f"{row['low']:+.0f} to {row['high']:+.0f}",
        ]
        for row in league
    ]
    words = "<p>Points and rating, as Elo counts, are of the latest thousand games or so.</p>"
    return words + _grid(["", *GAMES, "points", "rating", "95 % interval"], cells)


def _ratings(rated: Mapping[str, Any]) -> str:
    """Renders what `headrace rate` has found."""
    if not rated:
        return ""
    keys = ("players", "rating", "low", "high")
    players = sorted(zip(*(rated[key] for key in keys), strict=True), key=lambda row: -row[1])
    cells = [
        [str(name), f"{rating:.0f}", f"{low:.0f} to {high:.0f}"]
        for name, rating, low, high in players
    ]
    words = "<p>By games between them (headrace rate); numbers are versions.</p>"
    return words + _grid(["player", "rating", "95 % interval"], cells)


def _grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Renders a table whose first column is words."""
    top = "".join(f"<th>{name}</th>" for name in head)
    lines = (
        f"<tr><td>{html.escape(first)}</td>"
        + "".join(f'<td class="n">{cell}</td>' for cell in rest)
        + "</tr>"
        for first, *rest in rows
    )
    return f"<table><tr>{top}</tr>{''.join(lines)}</table>"


def _outcomes(summary: Mapping[str, Any]) -> str:
    unrolls = summary.get("unrolls")
    if not unrolls or not unrolls["generated"]:
        return ""
    made = unrolls["generated"]
    rows = "".join(
        f'<tr><td>{name.replace("_", " ")}</td><td class="n">{unrolls[name]:,}</td>'
        f'<td style="width:20rem"><div class="bar" style="width:{100 * unrolls[name] / made:.2f}%">'
        f"</div></td><td>{meaning}</td></tr>"
        for name, meaning in _OUTCOMES.items()
        if unrolls[name] or name == "trained"
    )
    words = f"<p>{made:,} unrolls were generated. Each stands in one row.</p>"
    return _section("What became of the unrolls", f"{words}<table>{rows}</table>")


def _shares(summary: Mapping[str, Any]) -> str:
    quarters = summary.get("trained_quarters")
    if not quarters:
        return ""
    rows = "".join(
        f'<tr><td>{name}</td><td class="n">{100 * share:.1f} %</td>'
        f'<td style="width:20rem"><div class="bar" style="width:{100 * share:.2f}%">'
        "</div></td></tr>"
        for name, share in zip(_QUARTERS, quarters, strict=True)
    )
    words = (
        "<p>Groups of environments in four equal parts, by how much of what was trained came from"
        " them. Each would supply 25 % if all were as fast as each other.</p>"
    )
    return _section("Who supplied the experience", f"{words}<table>{rows}</table>")


def _phases(summary: Mapping[str, Any]) -> str:
    phases = summary.get("phase_seconds") or {}
    total = sum(phases.values())
    if not total:
        return ""
    rows = "".join(
        f'<tr><td>{html.escape(name)}</td><td class="n">{seconds:,.1f} s</td>'
        f'<td class="n">{100 * seconds / total:.0f} %</td>'
        f'<td style="width:20rem"><div class="bar" style="width:{100 * seconds / total:.2f}%">'
        "</div></td></tr>"
        for name, seconds in phases.items()
    )
    return _section("Where the learner's time went", f"<table>{rows}</table>")


def _table(values: Mapping[str, Any]) -> str:
    def said(value: Any) -> str:
        return ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)

    rows = (
        f"<tr><td>{html.escape(key.replace('_', ' '))}</td><td>{html.escape(said(value))}</td></tr>"
        for key, value in values.items()
    )
    return f"<table>{''.join(rows)}</table>" if values else ""


def _section(title: str, body: str, kind: str = "") -> str:
    inside = f'<div class="{kind}">{body}</div>' if kind else body
    return f"<h2>{title}</h2>{inside}" if body else ""


def _small(plot: plots.Plot) -> str:
    return f"<figure>{html.escape(plot.title)}{plot.svg}</figure>"


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:,.1f}"
