"""The pictures of a run, drawn once and kept as SVG for the page and as PNG beside it."""

import io
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.broker import durable
from headrace.launch.results import learning_curve

Lines = Sequence[Mapping[str, Any]]

# Readable on white and on black backgrounds.
_GREY, _BLUE, _ORANGE = "#808890", "#3b82c4", "#d9822b"
# Parts of the loss and what belongs to them, in the order in which readers look.
_PARTS = (
    "policy_loss",
    "value_loss",
    "entropy",
    "kl",
    "clip_fraction",
    "rho_mean",
    "explained_variance",
    "grad_norm",
    "lr",
)
METRIC = "metric."
_NAMES = {"lr": "step size", "rho_mean": "importance ratio, mean", "kl": "KL divergence"}


@dataclass(frozen=True, slots=True)
class Plot:
    """Holds one picture as SVG and PNG."""

    name: str
    title: str
    svg: str
    png: bytes


def rates(history: Lines) -> list[tuple[float, float]]:
    """Returns (seconds, trained steps a second) over windows of about a sixtieth of the run each.

    A resumed run's clock goes on; no window reaches over the gap.
    """
    if len(history) < 2:
        return []
    span = max((history[-1]["t"] - history[0]["t"]) / 60, 1e-9)
    found, start = [], history[0]
    for entry in history[1:]:
        seconds = entry["t"] - start["t"]
        steps = entry["trained_steps"] - start["trained_steps"]
        if seconds <= 0 or steps < 0:
            start = entry
        elif seconds >= span:
            found.append((entry["t"], steps / seconds))
            start = entry
    return found


def throughput(history: Lines) -> Plot | None:
    points = rates(history)
    if not points:
        return None

    def draw(axes: Any) -> None:
        axes.plot([t for t, _ in points], [rate for _, rate in points], color=_BLUE)
        axes.set(xlabel="seconds", ylabel="trained steps a second")
        axes.set_ylim(bottom=0)

    return _plot("throughput", "Throughput", draw)


def lag(history: Lines, max_lag: int) -> Plot | None:
    points = [(entry["t"], entry["lag"]) for entry in history if entry.get("lag") is not None]
    if not points:
        return None

    def draw(axes: Any) -> None:
        axes.plot([t for t, _ in points], [value for _, value in points], color=_BLUE)
        axes.axhline(max_lag, linestyle="--", linewidth=1, color=_ORANGE)
        axes.text(
            0.01,
            max_lag,
            f"max_lag {max_lag}",
            transform=axes.get_yaxis_transform(),
            va="bottom",
            color=_ORANGE,
        )
        axes.set(xlabel="seconds", ylabel="versions, mean so far")
        axes.set_ylim(bottom=0, top=1.15 * max(max_lag, 1, *(value for _, value in points)))

    return _plot("lag", "Lag", draw)


def losses(history: Lines) -> list[Plot]:
    """Draws a picture for each loss part and training figure in the history."""
    plots = [
        _figure(history, part, part, _NAMES.get(part, part.replace("_", " "))) for part in _PARTS
    ]
    return [plot for plot in plots if plot is not None]


def length(history: Lines) -> Plot | None:
    return _figure(history, "mean_length", "length", "steps an episode")


def metrics(history: Lines, evaluations: Lines) -> list[Plot]:
    """Draws a picture for each of env.metrics: its mean over episodes, those of evaluations too,
    and over steps."""
    lines = itertools.chain(history, evaluations)
    found = {column for entry in lines for column in entry if column.startswith(METRIC)}
    names = sorted(name for name in found if not name.endswith((".min", ".max")))
    plots = [
        _figure(history, name, f"metric-{number}", name.removeprefix(METRIC), evaluations)
        for number, name in enumerate(names)
    ]
    return [plot for plot in plots if plot is not None]


def _figure(
    history: Lines, column: str, file: str, title: str, evaluations: Lines = ()
) -> Plot | None:
    """Draws one column; None = it is empty."""
    points = [(e["trained_steps"], e[column]) for e in history if e.get(column) is not None]
    marks = learning_curve.evaluated(history, evaluations, column)
    if not (points or marks):
        return None

    def draw(axes: Any) -> None:
        axes.plot(*_columns(points), color=_BLUE, linewidth=1, label="training")
        if marks:
            axes.plot(*_columns(marks), "o", color=_ORANGE, markersize=3, label="evaluation")
            axes.legend()

    return _plot(file, title, draw, size=(4, 2.4))


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def returns(draw: Callable[[Any], None]) -> Plot:
    return _plot("curve", "Return", draw, size=(9, 4.2))


def _plot(
    name: str, title: str, draw: Callable[[Any], None], *, size: tuple[float, float] = (9, 2.8)
) -> Plot:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    # Text stays text, so that it can be searched, and ids do not change from run to run.
    style: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": name,
        "text.color": _GREY,
        "axes.edgecolor": _GREY,
        "axes.labelcolor": _GREY,
        "xtick.color": _GREY,
        "ytick.color": _GREY,
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with pyplot.rc_context(style):
        figure, axes = pyplot.subplots(figsize=size, layout="constrained")
        draw(axes)
        axes.grid(alpha=0.25)
        if axes.get_xlim()[1] >= 10_000:
            axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))  # 50k
        png = io.BytesIO()
        figure.savefig(png, format="png", dpi=120, facecolor="white")
        return Plot(name, title, as_svg(figure), png.getvalue())


def as_svg(figure: Any) -> str:
    """Returns a figure as SVG for a page, without a file's head, and closes it."""
    from matplotlib import pyplot

    svg = io.StringIO()
    figure.savefig(svg, format="svg", transparent=True, metadata={"Date": None})
    pyplot.close(figure)
    text = svg.getvalue()
    return text[text.index("<svg") :]


def save(plots: Sequence[Plot], folder: Path) -> None:
    """Writes one PNG for each picture."""
    folder.mkdir(parents=True, exist_ok=True)
    for plot in plots:
        durable.write(folder / f"{plot.name}.png", plot.png)
