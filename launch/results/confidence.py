"""The 95 % confidence interval of a mean, by Student's t."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

# Half of the interval in standard errors, by degrees of freedom from 1 on.
_T = (
    *(12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624, 2.306004, 2.262157),
    *(2.228139, 2.200985, 2.178813, 2.160369, 2.144787, 2.131450, 2.119905, 2.109816, 2.100922),
    *(2.093024, 2.085963, 2.079614, 2.073873, 2.068658, 2.063899, 2.059539, 2.055529, 2.051831),
    *(2.048407, 2.045230, 2.042272),
)
_Z = statistics.NormalDist().inv_cdf(0.975)  # of infinitely many


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


def quantile(df: int) -> float:
    """Returns t such that 95 % lie between -t and t, for df degrees of freedom: beyond the table by
    a series in 1/df (Abramowitz and Stegun, 26.7.5), which is right to 6 digits there."""
    if df <= len(_T):
        return _T[df - 1]
    return (
        _Z
        + (_Z**3 + _Z) / (4 * df)
        + (5 * _Z**5 + 16 * _Z**3 + 3 * _Z) / (96 * df**2)
        + (3 * _Z**7 + 19 * _Z**5 + 17 * _Z**3 - 15 * _Z) / (384 * df**3)
    )
