"""The output of every benchmark: its parameters first, then one JSON line that names the
machine."""

import json
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.launch.results import hardware


def parameters(**values: Any) -> None:
    print("  ".join(f"{name} {value}" for name, value in values.items()), flush=True)  # noqa: T201


def result(bench: str, figures: Mapping[str, Any]) -> None:
    line = {"bench": bench, **figures, "machine": hardware.describe()}
    print(json.dumps(line), flush=True)  # noqa: T201


def paired_ratios(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """Returns the figures of two sides that were measured in turn: the median of the ratios, pair
    by pair, and the extremes."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return {
        "ratio": round(statistics.median(ratios), 3),
        "ratio_min": round(min(ratios), 3),
        "ratio_max": round(max(ratios), 3),
    }
