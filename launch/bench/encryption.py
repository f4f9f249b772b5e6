"""The cost of encryption: the same flow over TCP with and without CURVE, measured in turn.

It runs over loopback, where the network costs nearly nothing: a real network has a better ratio.
"""

import statistics
from collections.abc import Sequence
from typing import Any

from headrace.launch.bench import output
from headrace.launch.bench.simulated import flow
from headrace.launch.bench.simulated.flow import Flow

SIZES = (16_384, 262_144)


def bench(
    *, sizes: Sequence[int] = SIZES, seconds: float = 3.0, pairs: int = 5
) -> list[dict[str, Any]]:
    output.parameters(sizes=list(sizes), seconds=seconds, pairs=pairs, batch=flow.BATCH)
    return [_compare(size, seconds, pairs) for size in sizes]


def _compare(size: int, seconds: float, pairs: int) -> dict[str, Any]:
    plain, curve = [], []
    for pair in range(pairs):
        plain.append(flow.measure(size=size, seconds=seconds, tcp=True))
        curve.append(flow.measure(size=size, seconds=seconds, tcp=True, keys=True))
        output.parameters(
            bytes=size,
            pair=pair,
            plain=f"{plain[-1].per_s:.0f}/s",
            curve=f"{curve[-1].per_s:.0f}/s",
            ratio=f"{curve[-1].per_s / plain[-1].per_s:.2f}",
        )
    figures = {
        "bytes": size,
        **_figures("plain", plain, size),
        **_figures("curve", curve, size),
        **output.paired_ratios([one.per_s for one in curve], [one.per_s for one in plain]),
    }
    output.result("curve", figures)
    return figures


def _figures(name: str, flows: Sequence[Flow], size: int) -> dict[str, float]:
    """Returns medians. Bytes count once, though they travel twice: in and out again."""
    rate = statistics.median(one.per_s for one in flows)
    cpu = statistics.median(one.cpu_s / (one.unrolls * size / 1e9) for one in flows)
    return {
        f"{name}_per_s": round(rate),
        f"{name}_mb_per_s": round(rate * size / 1e6),
        f"{name}_cpu_s_per_gb": round(cpu, 2),
    }
