"""Splits action spaces into parts, one for each decision of the policy."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from headrace.learner.spaces import Part

Path = tuple[str | int, ...]


def action_parts(space: "Space[Any]", path: Path = ()) -> Iterator[Part]:
    """Yields every part in the space's order; raises TypeError that names an unsupported one."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        if not len(space.spaces):
            raise TypeError(f"{_named(path)} is empty; leave it out")
        for key, inner in _inner(space, path):
            yield from action_parts(inner, (*path, key))
    elif isinstance(space, spaces.Discrete):
        yield _choices(space, path, np.array(space.n), np.array(space.start))
    elif isinstance(space, spaces.MultiDiscrete):
        yield _choices(space, path, space.nvec, space.start)
    elif isinstance(space, spaces.MultiBinary):
        yield _choices(space, path, np.full(space.shape, 2), np.zeros(space.shape, np.int64))
    elif isinstance(space, spaces.Box):
        yield _numbers(space, path)
    else:
        raise TypeError(
            f"{_named(path)} is {space}, which is not supported; Discrete, MultiDiscrete,"
            " MultiBinary, Box, Dict and Tuple are: translate it to one of them in a wrapper"
            " (env.wrappers)"
        )


def _inner(space: "spaces.Dict | spaces.Tuple[Any]", path: Path) -> Iterator[tuple[str | int, Any]]:
    if isinstance(space, spaces.Tuple):
        yield from enumerate(space.spaces)
        return
    for key, inner in space.spaces.items():
        if not isinstance(key, str):
            raise TypeError(f"{_named(path)} has the key {key!r}; make it a string")
        yield key, inner


def _choices(space: "Space[Any]", path: Path, counts: NDArray[Any], start: NDArray[Any]) -> Part:
    if not counts.size:
        raise TypeError(f"{_named(path)} is {space}, which has no element; leave it out")
    return Part(
        path,
        np.dtype(space.dtype).name,
        tuple(map(int, counts.shape)),
        categories=tuple(map(int, counts.flat)),
        start=tuple(map(int, start.flat)),
    )


def _numbers(space: spaces.Box, path: Path) -> Part:
    dtype = np.dtype(space.dtype)
    if not np.prod(space.shape):
        raise TypeError(f"{_named(path)} is {space}, which has no element; leave it out")
    if dtype.kind not in "iuf" or dtype.itemsize > 8:
        raise TypeError(
            f"{_named(path)} is a Box of {dtype.name}; make it a MultiBinary, or float32"
        )
    # A Box of integers has limits even where it was given none.
    low = np.where(space.bounded_below, space.low, -np.inf).astype(np.float64)
    high = np.where(space.bounded_above, space.high, np.inf).astype(np.float64)
    return Part(
        path,
        dtype.name,
        tuple(map(int, space.shape)),
        low=tuple(map(float, low.flat)),
        high=tuple(map(float, high.flat)),
    )


def _named(path: Path) -> str:
    return ".".join(map(str, path)) or "it"
