"""Lays the arrays of a frame out in one piece of memory, which processes may share."""

from typing import NamedTuple

import numpy as np

from headrace.learner.spaces import Spaces

_LINE = 64  # bytes of a cache line


class Place(NamedTuple):
    """Says where an array lies, and what it holds."""

    offset: int  # bytes, from the start of the memory
    dtype: "np.dtype[np.generic]"
    shape: tuple[int, ...]


def places(spaces: Spaces, groups: int, envs: int) -> tuple[list[Place], int]:
    """Returns the place of every array, each on its own cache line, and the size of the memory."""
    count = groups * envs
    wanted: list[tuple[str, tuple[int, ...]]] = [
        ("float64", (groups,)),
        ("float64", (groups,)),
        ("float64", (len(spaces.settings),)),
        (spaces.action.dtype, (count, *spaces.action.shape)),
        ("float32", (count,)),
        ("uint8", (count,)),
        *((leaf.dtype, (count, *leaf.shape)) for leaf in spaces.observation),
        *([("float64", (count, len(spaces.metrics)))] if spaces.metrics else []),
    ]
    found, offset = [], 0
    for dtype, shape in wanted:
        found.append(Place(offset, np.dtype(dtype), shape))
        size = np.dtype(dtype).itemsize * int(np.prod(shape, dtype=np.int64))
        offset = -(-(offset + size) // _LINE) * _LINE
    return found, max(offset, _LINE)
