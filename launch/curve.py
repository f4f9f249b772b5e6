"""The learning curve of a run, as a picture."""

import json
from pathlib import Path
from typing import Any


def read(history: Path) -> list[dict[str, Any]]:
    """The run's history, one entry a quarter second; a torn last line is left out."""
    if not history.exists():
        return []
    text = history.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def draw(history: list[dict[str, Any]], target: float | None, title: str, to: Path) -> None:
    """Return over steps, and over seconds above it."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    points = [entry for entry in history if entry.get("mean_return") is not None]
    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    axes.plot(
        [p["trained_steps"] for p in points], [p["mean_return"] for p in points], linewidth=1.5
    )
    if target is not None:
        axes.axhline(target, linestyle="--", linewidth=1, color="gray")
        axes.text(
            0.01, target, f"goal {target:g}", transform=axes.get_yaxis_transform(), va="bottom"
        )
    axes.set(
        title=title, xlabel="agent steps trained on", ylabel="return, mean of the last 100 episodes"
    )
    axes.grid(alpha=0.3)
    figure.savefig(to, dpi=120)
    pyplot.close(figure)
