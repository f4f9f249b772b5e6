"""Reads the metrics of env.metrics from an environment's info, of one or of many at once."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.learner.spaces import LARGEST_METRIC

Numbers = NDArray[np.float64]  # NaN = not in info, infinite = it is no number that can be shown
_SCALARS = (float, int, np.number, np.bool_)


class InfoMetrics:
    """Finds each metric by its name, or along the dots in it: episode.r is entry r of episode."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = [(name, tuple(name.split("."))) for name in names]

    def read(self, info: Mapping[str, Any], into: Numbers) -> None:
        """Reads the info of one environment into its row, [metrics]."""
        for place, (name, path) in enumerate(self.names):
            value = info.get(name)
            if value is None and len(path) > 1:
                value = _find(info, name, path)[1]
            plain = type(value) is float and -LARGEST_METRIC <= value <= LARGEST_METRIC
            into[place] = value if plain else _number(value)

    def read_batch(self, info: Mapping[str, Any], into: Numbers) -> None:
        """Reads the info of a vector environment into [envs, metrics]. Beside an entry gymnasium
        puts another, its name behind a dash: which environments gave it."""
        for place, (name, path) in enumerate(self.names):
            given, values = _find(info, name, path)
            into[:, place] = _numbers(values, len(into))
            if np.shape(given) == (len(into),):
                into[~np.asarray(given, np.bool_), place] = math.nan


def _find(info: Mapping[str, Any], name: str, path: Sequence[str]) -> tuple[Any, Any]:
    """Returns the entry, behind the one that says which environments gave it; None = there is
    none."""
    if name in info or len(path) == 1:
        return info.get(f"_{name}"), info.get(name)
    given = None
    entry: Any = info
    for key in path:
        if not isinstance(entry, Mapping):
            return None, None if entry is None else math.inf  # a dict was wanted
        given, entry = entry.get(f"_{key}", given), entry.get(key)
    return given, entry


def _number(value: Any) -> float:
    """Returns the value; infinity where it is no number."""
    if value is None:
        return math.nan
    try:
        if not isinstance(value, _SCALARS):
            array = np.asarray(value)
            value = array.reshape(()) if array.dtype.kind in "biuf" else math.inf
        number = float(value)
    except Exception:  # noqa: BLE001 - whatever it is, it is no number
        return math.inf
    return number if -LARGEST_METRIC <= number <= LARGEST_METRIC else math.inf


def _numbers(values: Any, envs: int) -> Numbers:
    """Returns one number for each environment; infinity where that cannot be."""
    if values is None:
        return np.full(envs, math.nan)
    array = np.asarray(values)
    if array.shape[:1] != (envs,):
        return np.full(envs, math.inf)
    return np.array([_number(value) for value in array])
