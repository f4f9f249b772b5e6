"""The shared memory between one sampler and the act process: rows in, the network's numbers out.

    inputs, one array after another | memory before | parameters | memory after

Whose turn it is the messages say: the sampler writes before it asks, and reads after the answer.
"""

import math
import mmap
from collections.abc import Iterator
from typing import Annotated, Any, Final, NamedTuple

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

_ALIGN: Final = 64  # bytes
_MOST_BYTES: Final = 1 << 32


class Array(Struct, frozen=True):
    """Describes one input, without the dimension of rows."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class Layout(Struct, frozen=True):
    """Describes what lies where."""

    rows: Annotated[int, Meta(ge=1, le=1 << 20)]  # at most, of one call
    inputs: tuple[Array, ...]
    params: Annotated[int, Meta(ge=1, le=1 << 24)]  # numbers of a row of the network's output
    memory: Annotated[int, Meta(ge=0, le=1 << 24)]  # numbers that an environment carries

    @property
    def nbytes(self) -> int:
        return sum(nbytes for _, nbytes in self._places())

    def _places(self) -> Iterator[tuple[Array, int]]:
        """Yields all arrays in their order, each with the bytes that it takes."""
        numbers = (("", self.memory), ("", self.params), ("", self.memory))
        for array in (*self.inputs, *(Array(name, "float32", (n,)) for name, n in numbers)):
            size = np.dtype(array.dtype).itemsize * math.prod(array.shape) * self.rows
            yield array, -(-size // _ALIGN) * _ALIGN

    def fits(self, nbytes: int) -> bool:
        """Says whether shared memory of this size holds it."""
        return self.nbytes <= min(nbytes, _MOST_BYTES)

    def over(self, fd: int) -> "Slot":
        """Maps the shared memory; it lives as long as one of its arrays does."""
        shared = memoryview(mmap.mmap(fd, self.nbytes))
        arrays: list[NDArray[Any]] = []
        at = 0
        for array, nbytes in self._places():
            arrays.append(np.ndarray((self.rows, *array.shape), array.dtype, shared, at))
            at += nbytes
        names = [array.name for array in self.inputs]
        *inputs, before, params, after = arrays
        return Slot(dict(zip(names, inputs, strict=True)), before, params, after)


class Slot(NamedTuple):
    """Holds the arrays, each with a row for every environment of one call."""

    inputs: dict[str, NDArray[Any]]
    before: NDArray[np.float32]  # the memory that goes in; no columns = nothing is remembered
    params: NDArray[np.float32]
    after: NDArray[np.float32]
