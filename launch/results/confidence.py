"""The 95 % confidence interval of a mean, by Student's t."""

import functools
import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

# From this df on a series in 1/df is exact to more digits than are ever printed.
_MANY = 200


class Interval(NamedTuple):
    """Holds a mean and its interval; None = a single value has no spread."""

    mean: float
    low: float | None
    high: float | None
    std: float | None


def interval_of(values: Sequence[float]) -> Interval:
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return Interval(mean, None, None, None)
    std = statistics.stdev(values)
    half = quantile(len(values) - 1) * std / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half, std)


@functools.cache
def quantile(df: int, inside: float = 0.95) -> float:
    """Returns t such that the share `inside` lies between -t and t, for df degrees of freedom."""
    if df >= _MANY:
        return _series(statistics.NormalDist().inv_cdf((1 + inside) / 2), df)
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        angle = (low + high) / 2
        low, high = (angle, high) if _share(angle, df) < inside else (low, angle)
    return math.sqrt(df) * math.tan((low + high) / 2)


def _share(angle: float, df: int) -> float:
    """Returns the share between -t and t, t = sqrt(df) * tan(angle): Abramowitz and Stegun, 26.7.3
    and 4."""
    odd = df % 2
    term = math.cos(angle) if odd else 1.0
    total = term if df > 1 else 0.0
    for k in range(1 + odd, df - 2, 2):
        term *= math.cos(angle) ** 2 * k / (k + 1)
        total += term
    total *= math.sin(angle)
    return (angle + total) * 2 / math.pi if odd else total


def _series(z: float, df: int) -> float:
    """Approximates t from the normal distribution's z: Abramowitz and Stegun, 26.7.5."""
    return (
        z
        + (z**3 + z) / (4 * df)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * df**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * df**3)
    )
