"""The screens and plain lines of `headrace top`, made from a broker's status.

Names and errors come from untrusted peers: each becomes one line of printable text, never markup.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from rich.box import ROUNDED
from rich.console import ConsoleDimensions, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from headrace.broker import sanitise
from headrace.launch.monitor.learning_figures import metrics, time_words
from headrace.launch.monitor.rates import Rates, trained_steps

Status = Mapping[str, Any]

_ACCENT, _QUIET, _ALARM = "bright_blue", "bright_black", "bold yellow"
_PROBLEMS: Final = ("stale", "shed", "rejected", "poison")
_SHOWN: Final = 5  # of late roles and of errors; the page shows more
_ROWS: Final = 6  # of the curve
_NONE: Final = "-"


def screen(
    status: Status, rates: Rates, *, size: ConsoleDimensions, news: str, wrong: str
) -> RenderableType:
    """Draws the whole screen. `news`: a remark for the operator; `wrong`: why the status is out of
    date.

    What matters most is at the top, because a small terminal cuts off the rest.
    """
    alarms = [*_late(status), *_troubles(status)]
    parts: list[RenderableType] = [
        _header(status, rates, news=news, wrong=wrong),
        _pipeline(status, rates, size.width),
        *(Text(line, "yellow", no_wrap=True, overflow="ellipsis") for line in alarms),
        Text(),
        _outcomes(status, rates),
        Text(),
    ]
    if points := _curve_points(status):
        parts += _curve(points, size.width)
    return Group(*parts)


def plain_lines(status: Status, rates: Rates) -> list[str]:
    """Returns the same as plain lines, for a file or a pipe."""
    actors = status.get("actors") or {}
    rows = [
        ("run", sanitise.words(str(status.get("run", _NONE)))),
        ("state", state(status, rates)[0]),
        ("samplers", f"{_count(actors.get('count'))}, {_count(actors.get('behind'))} behind"),
        ("queue", ", ".join(_queue(status))),
        ("trained", f"{_rate(rates('trained_steps'))} steps/s"),
        ("sampled", f"{_rate(rates('env_steps'))} steps/s"),
        *((name, value) for name, value, _ in _figures(status)),
        ("outcomes", ", ".join(f"{name} {n:,}" for name, n in _outcome_counts(status)) or "none"),
    ]
    return [*(f"{name:12}{value}" for name, value in rows), *_late(status), *_troubles(status)]


def state(status: Status, rates: Rates) -> tuple[str, str]:
    """Returns the run's state in words, and its colour."""
    if status.get("over"):
        return "the run is over", _QUIET
    if not status.get("learners"):
        return "no learner is here", _ALARM
    if not (status.get("actors") or {}).get("count"):
        return "no sampler is here", _ALARM
    speed = rates("outcome_trained")  # the broker's own count: learners report theirs later
    if speed is None:
        trained = (status.get("outcomes") or {}).get("trained")
        return "it has trained; how fast is not known yet" if trained else "starting", _QUIET
    return ("training", _ACCENT) if speed > 0 else ("nothing is being trained", _ALARM)


def _header(status: Status, rates: Rates, *, news: str, wrong: str) -> RenderableType:
    words, colour = (wrong, _ALARM) if wrong else state(status, rates)
    mark = "▲" if colour == _ALARM else "●"
    left = Text.assemble(
        (sanitise.words(str(status.get("run", "headrace")), 60), "bold"),
        (f"  {mark} {words}", colour),
    )
    right = Text(" · ".join(filter(None, (news, _uptime(status)))), _QUIET, justify="right")
    grid = Table.grid(expand=True)
    grid.add_row(left, right)
    return grid


def _pipeline(status: Status, rates: Rates, width: int) -> RenderableType:
    actors, learners = status.get("actors") or {}, status.get("learners") or []
    behind = actors.get("behind", 0)
    sampling = _box(
        "samplers",
        (_count(actors.get("count")), "bold"),
        (f"{_count(behind)} behind" if behind else "all up to date", _QUIET),
        (f"{_rate(rates('env_steps'))} steps/s", ""),
    )
    queued, leased, running = _queue(status)
    waiting = _box(
        "broker", (f"{queued}{_queue_fill(status)}", "bold"), (leased, _QUIET), (running, _QUIET)
    )
    learning = _box(
        "learner" if len(learners) == 1 else f"learner, {len(learners)} ranks",
        (f"{_rate(rates('trained_steps'))} steps/s", "bold"),
        (f"{_count(trained_steps(status))} in all", _QUIET),
        (f"version {_count(status.get('version'))}", ""),
    )
    if width < 80:
        flow: RenderableType = Group(sampling, waiting, learning)
    else:
        flow = Table.grid(expand=True)
        for ratio in (4, 2, 5, 2, 4):
            flow.add_column(ratio=ratio, vertical="middle")
        sent, given = rates("received"), rates("outcome_trained")
        flow.add_row(sampling, _arrow(sent, "unrolls"), waiting, _arrow(given, "trained"), learning)
    figures = Table.grid(padding=(0, 2))
    figures.add_column(min_width=10)
    for name, value, bad in _figures(status):
        figures.add_row(Text(name, _QUIET), Text(value, _ALARM if bad else ""))
    return Group(flow, _weights_arrow(status, rates), figures)


def _box(name: str, *rows: tuple[str, str]) -> Panel:
    words = Text("\n").join(Text(words, style) for words, style in rows)
    return Panel(words, title=Text(name, _QUIET), title_align="left", box=ROUNDED)


def _arrow(speed: float | None, what: str) -> Text:
    colour = _ACCENT if speed else _QUIET
    return Text(f"{_rate(speed)}/s\n────────▶\n{what}", colour, justify="center")


def _weights_arrow(status: Status, rates: Rates) -> Text:
    speed = rates("version")
    words = f" weights, version {_count(status.get('weights'))}, {_rate(speed)} a second "
    return Text(f"  ◀────────{words}────────", _ACCENT if speed else _QUIET)


def _figures(status: Status) -> Iterable[tuple[str, str, bool]]:
    """Yields (name, value, whether it is a problem)."""
    learner: Mapping[str, Any] = next(iter(status.get("learners") or ()), {})
    score: Mapping[str, Any] = next(
        (one for one in status.get("evaluators") or () if isinstance(one, dict) and "mean" in one),
        {},
    )
    lag, most = learner.get("lag"), status.get("max_lag")
    missing = status.get("unaccounted")
    evaluated = f", evaluation {score['mean']:,.1f}" if score else ""
    ahead = status.get("ahead")
    bound = "" if most is None else f" of at most {most + 1:,}"
    yield "return", f"{_amount(learner.get('mean_return'))}{evaluated}", False
    if (length := learner.get("mean_length")) is not None:
        yield "length", f"{_amount(length)} steps an episode", False
    for metric in metrics(status):
        yield metric.name, metric.words(), False
    if (fit := learner.get("explained_variance")) is not None:
        yield "explained", f"{_amount(fit)} of the values' variance", False
    if spent := time_words(learner):
        yield "learner", spent, False
    yield "lag", f"{_amount(lag)} versions when trained", False
    if ahead is not None:
        beyond = most is not None and ahead > most + 1
        yield "ahead", f"{_amount(ahead)}{bound} batches", beyond
    exact = "every unroll that came in has its place" if missing == 0 else "not accounted for"
    yield "ledger", exact if missing == 0 else f"{_count(missing)} {exact}", bool(missing)


def _outcomes(status: Status, rates: Rates) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style=_QUIET)
    for name in ("outcome", "unrolls", "share", "a second"):
        table.add_column(name, justify="left" if name == "outcome" else "right")
    whole = sum(n for _, n in _outcome_counts(status)) or 1
    for name, n in _outcome_counts(status):
        style = "yellow" if name in _PROBLEMS and n else ""
        speed = _rate(rates(f"outcome_{name}"))
        share = "" if name == "duplicate" else f"{100 * n / whole:.1f} %"
        table.add_row(Text(name, style), f"{n:,}", share, speed)
    return table


def _outcome_counts(status: Status) -> list[tuple[str, int]]:
    found = status.get("outcomes") or {}
    return [(sanitise.words(name, 20), n) for name, n in found.items() if n or name == "trained"]


def _late(status: Status) -> list[str]:
    found = status.get("late") or []
    told = [
        f"late        {_peer_name(one)} not heard for {_span(one.get('silent_s'))}"
        for one in found[:_SHOWN]
    ]
    return told + _more(found)


def _troubles(status: Status) -> list[str]:
    found = status.get("troubles") or []
    told = [
        f"error       {_peer_name(one)} {_times(one)}{_span(one.get('ago_s'))} ago:"
        f" {sanitise.words(str(one.get('text', '')).replace(chr(10), ' / '), 300)}"
        for one in found[:_SHOWN]
    ]
    return told + _more(found)


def _more(found: Sequence[object]) -> list[str]:
    return [f"            and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []


def _peer_name(one: Mapping[str, Any]) -> str:
    return sanitise.words(f"{one.get('role', '')} {one.get('name', '')}", 64)


def _times(one: Mapping[str, Any]) -> str:
    return f"{one['count']:,} times, last " if one.get("count", 1) > 1 else ""


def _curve_points(status: Status) -> list[float]:
    told = (one for one in status.get("curve") or () if isinstance(one, list | tuple))
    means = [pair[1] for pair in told if len(pair) == 2]
    found = [float(mean) for mean in means if isinstance(mean, int | float) and math.isfinite(mean)]
    return found if len(found) > 1 else []


def _curve(points: Sequence[float], width: int) -> list[Text]:
    """Draws the curve in block characters, exact to an eighth of a row."""
    columns = max(10, min(width - 14, len(points)))
    at = [points[n * (len(points) - 1) // (columns - 1)] for n in range(columns)]
    low, high = min(at), max(at)
    eighths = [round((one - low) / (high - low or 1.0) * (8 * _ROWS - 1)) + 1 for one in at]
    drawn = []
    for row in reversed(range(_ROWS)):
        blocks = "".join(" ▁▂▃▄▅▆▇█"[min(8, max(0, one - 8 * row))] for one in eighths)
        edge = _amount(high) if row == _ROWS - 1 else _amount(low) if row == 0 else ""
        drawn.append(Text.assemble((f"{edge:>10}  ", _QUIET), (blocks, _ACCENT)))
    return [Text("mean return, by steps trained", _QUIET), *drawn]


def _queue(status: Status) -> tuple[str, str, str]:
    names = (("queued", "queued"), ("leased", "at learners"), ("running", "being made"))
    queued, leased, running = (f"{_count(status.get(key))} {words}" for key, words in names)
    return queued, leased, running


def _queue_fill(status: Status) -> str:
    held, most = status.get("queued_bytes"), status.get("queue_limit_bytes")
    return f", {100 * held / most:.0f} % full" if held is not None and most else ""


def _uptime(status: Status) -> str:
    return f"up {_span(status['uptime_s'])}" if "uptime_s" in status else ""


def _count(value: float | None) -> str:
    return _NONE if value is None else f"{value:,.0f}"


def _rate(value: float | None) -> str:
    return _NONE if value is None else f"{value:,.2f}" if 0 < value < 10 else f"{value:,.0f}"


def _amount(value: float | None) -> str:
    return _NONE if value is None else f"{value:,.2f}"


def _span(seconds: float | None) -> str:
    if seconds is None:
        return "some time"
    whole = int(seconds)
    if whole < 90:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min"
    return f"{whole // 3600} h {whole // 60 % 60:02} min"
