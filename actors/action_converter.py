"""Converts rows that the policy chose to the actions of an environment's space."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.learner.spaces import Action, Part, discrete

Rows = NDArray[Any]  # [N, *action.shape] of action.dtype
Array = NDArray[Any]


class ActionConverter:
    """Converts rows of one action space to the environment's form."""

    def __init__(self, action: Action) -> None:
        self._parts: list[_ChoicePart | _NumberPart] = []
        choice, number = 0, len(action.categories)
        for part in action.parts:
            if part.categories:
                self._parts.append(_ChoicePart(part, choice))
                choice += len(part.categories)
            else:
                self._parts.append(_NumberPart(part, number, squash=action.squash))
                number += math.prod(part.shape)
        self._nest = _nest([(part.path, at) for at, part in enumerate(action.parts)])
        self._single = action.single
        # Rows of the commonest kind are already what the environment is given.
        self._same = action.single and action.parts == discrete(action.categories[0]).parts

    def one(self, row: Rows | int) -> Any:
        """Returns one environment's action: an int for a Discrete, else an array; in dicts and
        tuples as the space has them."""
        return self.each(np.asarray(row)[None])[0]

    def each(self, rows: Rows) -> list[Any]:
        """Returns the environment's action for every row, as one() does."""
        if self._same:
            numbers: list[Any] = rows.tolist()
            return numbers
        columns = [part.each(self._many(part, rows)) for part in self._parts]
        return [_fill(self._nest, values) for values in zip(*columns, strict=True)]

    def many(self, rows: Rows) -> Any:
        """Returns a vector environment's actions: arrays [N, ...] in the same dicts and tuples."""
        if self._same:
            return rows
        return _fill(self._nest, [self._many(part, rows) for part in self._parts])

    def _many(self, part: "_ChoicePart | _NumberPart", rows: Rows) -> Array:
        return part.many(rows[:, None] if self._single else rows)


class _ChoicePart:
    """Converts the columns of a Discrete, MultiDiscrete or MultiBinary."""

    def __init__(self, part: Part, at: int) -> None:
        self._columns = slice(at, at + len(part.categories))
        self._start = np.array(part.start, np.int64)
        self._shape, self._dtype = part.shape, np.dtype(part.dtype)

    def many(self, rows: Rows) -> Array:
        # float32 holds every choice exactly.
        chosen = rows[:, self._columns].astype(np.int64) + self._start
        return chosen.reshape(len(rows), *self._shape).astype(self._dtype, copy=False)

    def each(self, values: Array) -> list[Any]:
        return list(values) if self._shape else values.tolist()


class _NumberPart:
    """Converts the columns of a Box."""

    def __init__(self, part: Part, at: int, *, squash: bool) -> None:
        low, high = np.array(part.low), np.array(part.high)
        self._columns = slice(at, at + len(low))
        self._shape, self._dtype = part.shape, np.dtype(part.dtype)
        self._kept = np.tanh if squash else _cut
        self._bounded = np.array(part.bounded)
        least, most = np.where(self._bounded, (low, high), ((-1.0,), (1.0,)))
        # Halves first: the difference may be too large to be a number.
        self._middle, self._half = least / 2 + most / 2, most / 2 - least / 2
        self._low, self._high = _limits(low, high, self._dtype)

    def many(self, rows: Rows) -> Array:
        drawn = rows[:, self._columns].astype(np.float64)
        scaled = self._middle + self._half * np.where(self._bounded, self._kept(drawn), drawn)
        if self._dtype.kind in "iu":
            scaled = np.rint(scaled)
        # Also of what is bounded: rounding may have gone a little beyond.
        inside: Array = np.clip(scaled, self._low, self._high)
        return inside.astype(self._dtype).reshape(len(rows), *self._shape)

    def each(self, values: Array) -> list[Any]:
        # An element of an array would be no array, where a Box has no dimensions.
        return list(values) if self._shape else [values[at, ...] for at in range(len(values))]


def random_rows(
    action: Action, rng: np.random.Generator, count: int, mask: Array | None = None
) -> Rows:
    """Draws random rows from what `mask` [count, sum(categories)] allows."""
    if action.single and mask is None:
        return rng.integers(0, action.categories[0], count)
    weights = rng.random((count, sum(action.categories)))
    if mask is not None:
        weights = np.where(mask != 0, weights, -1.0)
    ends = np.cumsum(action.categories, dtype=np.int64)
    choices = [
        weights[:, end - n : end].argmax(axis=1)
        for n, end in zip(action.categories, ends.tolist(), strict=True)
    ]
    if action.single:
        only: Rows = choices[0]
        return only
    rows = np.empty((count, *action.shape), action.dtype)
    for at, chosen in enumerate(choices):
        rows[:, at] = chosen
    if action.numbers:
        rows[:, len(choices) :] = rng.uniform(-1, 1, (count, action.numbers))
    return rows


def _cut(drawn: Array) -> Array:
    cut: Array = np.clip(drawn, -1.0, 1.0)
    return cut


def _limits(low: Array, high: Array, dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """Returns the bounds as float64, tightened to what the dtype holds."""
    if dtype.kind == "f":
        # A finite number must not become infinite, either.
        largest = float(np.finfo(dtype).max)
        return np.maximum(low, -largest), np.minimum(high, largest)
    least, most = float(np.iinfo(dtype).min), float(np.iinfo(dtype).max)
    if int(most) > np.iinfo(dtype).max:  # of 64 bits: the next float64 is one too many
        most = math.nextafter(most, 0.0)
    return np.maximum(np.ceil(low), least), np.minimum(np.floor(high), most)


_Nest = int | dict[str, Any] | tuple[Any, ...]  # numbers of parts, where they belong


def _nest(paths: list[tuple[tuple[str | int, ...], int]]) -> _Nest:
    if not paths[0][0]:
        return paths[0][1]
    below: dict[str | int, list[tuple[tuple[str | int, ...], int]]] = {}
    for path, at in paths:
        below.setdefault(path[0], []).append((path[1:], at))
    inner = {key: _nest(rest) for key, rest in below.items()}
    # Keys of a Dict are strings, places in a Tuple are numbers and come in order.
    if isinstance(paths[0][0][0], int):
        return tuple(inner.values())
    return {str(key): value for key, value in inner.items()}


def _fill(nest: _Nest, values: Any) -> Any:
    if isinstance(nest, int):
        return values[nest]
    if isinstance(nest, dict):
        return {key: _fill(inner, values) for key, inner in nest.items()}
    return tuple(_fill(inner, values) for inner in nest)
