"""Splits observation spaces into leaves, and checks the values that are written into them."""

import operator
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from headrace.learner.spaces import Leaf

Array = NDArray[np.generic]
PLAIN = "obs"  # the leaf's name where the space has no parts


class NumberLeaf:
    """Describes and checks the values of a Box or MultiBinary."""

    def __init__(self, name: str, space: spaces.Box | spaces.MultiBinary) -> None:
        self.shape = tuple(int(n) for n in space.shape)
        self.dtype = _travels_as(name, np.dtype(space.dtype), self.shape)
        self.leaf = Leaf(name, self.dtype.str, self.shape)
        if isinstance(space, spaces.Box):
            self.low, self.high = space.low, space.high
        else:
            self.low, self.high = np.zeros(self.shape), np.ones(self.shape)
        self.binary = self.leaf.image and bool(np.all(self.high <= 1))  # its bytes: 0 or 1

    def array(self, value: Any, lead: tuple[int, ...] = ()) -> Array:
        """Returns the value as it may be assigned; `lead` is the batch dimension, if any."""
        array = _array(value)
        if array.shape != (*lead, *self.shape) or not _fits(value, array, self.dtype):
            raise ValueError(_returned(self.leaf, array, lead))
        return array

    def check(self, value: Any) -> None:
        array = self.array(value).astype(self.dtype)
        # Not a number is outside, too.
        outside = ~((self.low <= array) & (array <= self.high))
        if outside.any():
            at = _first(outside)
            raise ValueError(
                f"{self.leaf.name}: {array[at]}{_at(at)} was returned, the space says"
                f" {self.low[at]} to {self.high[at]}"
            )


class ChoiceLeaf:
    """Describes and checks the values of a Discrete or MultiDiscrete; rows count from 0."""

    binary = False  # the network knows how many values each has

    def __init__(self, name: str, space: spaces.Discrete | spaces.MultiDiscrete) -> None:
        self.dtype = np.dtype(np.int64)
        counts = space.nvec if isinstance(space, spaces.MultiDiscrete) else space.n
        self.counts = np.asarray(counts, np.int64)
        self.start = np.asarray(space.start, np.int64)
        self.shape = self.counts.shape
        categories = tuple(int(n) for n in self.counts.flat)
        start = tuple(int(n) for n in self.start.flat) if self.start.any() else ()
        self.leaf = Leaf(name, self.dtype.str, self.shape, categories, start)
        self._range: tuple[int, int] | None = None
        if isinstance(space, spaces.Discrete):
            self._range = int(space.start), int(space.start) + int(space.n)

    def array(self, value: Any, lead: tuple[int, ...] = ()) -> Array | int:
        if self._range and not lead:
            return self._one(value, *self._range)
        array, shape = _array(value), (*lead, *self.shape)
        if array.shape != shape or array.dtype.kind not in "iu":
            raise ValueError(_returned(self.leaf, array, lead))
        counted: NDArray[np.int64] = array.astype(np.int64) - self.start
        outside = (counted < 0) | (counted >= self.counts)
        if outside.any():
            at = _first(outside)
            start = np.broadcast_to(self.start, shape)[at]
            end = start + np.broadcast_to(self.counts, shape)[at]
            raise ValueError(self._out_of_range(array[at], at, int(start), int(end)))
        return counted

    def check(self, value: Any) -> None:
        """Raises ValueError for a value outside the space; array() checks the values, too."""
        self.array(value)

    def _one(self, value: Any, start: int, end: int) -> int:
        try:
            number = operator.index(value)
        except TypeError:
            raise ValueError(_returned(self.leaf, _array(value), ())) from None
        if not start <= number < end:
            raise ValueError(self._out_of_range(number, (), start, end))
        return number - start

    def _out_of_range(self, value: Any, at: tuple[int, ...], start: int, end: int) -> str:
        return (
            f"{self.leaf.name}: {value}{_at(at)} was returned, the space says {start} to {end - 1}"
        )


Part = NumberLeaf | ChoiceLeaf


def parts_of(space: "Space[Any]", name: str = "") -> Iterator[Part]:
    """Yields every leaf in the space's order, save texts inside a Dict or Tuple; raises TypeError
    that names an unsupported part."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for key, inner in _inside(space):
            if not is_text(inner):
                yield from parts_of(inner, _below(name, key))
    elif 0 in (space.shape or ()):
        raise TypeError(
            f"{name or PLAIN} is {space}, which has no element; leave it out in a wrapper"
            " (env.wrappers)"
        )
    elif isinstance(space, spaces.Box | spaces.MultiBinary):
        yield NumberLeaf(name or PLAIN, space)
    elif isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        yield ChoiceLeaf(name or PLAIN, space)
    else:
        raise TypeError(
            f"{name or PLAIN} is {space}, which is not supported; Box, Discrete, MultiBinary,"
            " MultiDiscrete, Dict and Tuple are: translate it to one of them in a wrapper"
            " (env.wrappers)"
        )


def values_of(space: "Space[Any]", observation: Any, name: str = "") -> Iterator[Any]:
    """Yields the observation's values in the order of the parts, batched or not."""
    if isinstance(space, spaces.Dict):
        _same_keys(space, observation, name or PLAIN)
    elif isinstance(space, spaces.Tuple):
        if not isinstance(observation, tuple | list) or len(observation) != len(space.spaces):
            raise ValueError(
                f"{name or PLAIN}: {_kind(observation)} was returned, the space says a tuple of"
                f" {len(space.spaces)}"
            )
    else:
        yield observation
        return
    for key, inner in _inside(space):
        if not is_text(inner):
            yield from values_of(inner, observation[key], _below(name, key))


def texts_of(space: "Space[Any]", name: str = "") -> Iterator[str]:
    """Yields the names of the texts inside a Dict or Tuple, which no network sees."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for key, inner in _inside(space):
            yield from texts_of(inner, _below(name, key))
    elif name and is_text(space):
        yield name


def is_text(space: "Space[Any]") -> bool:
    """Tells whether the values of a space are strings, whatever its class."""
    return space.dtype is not None and space.dtype.kind == "U"


def _inside(space: "spaces.Dict | spaces.Tuple[Any]") -> Iterable[tuple[Any, "Space[Any]"]]:
    return space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)


def _same_keys(space: spaces.Dict, observation: Any, name: str) -> None:
    wanted = space.spaces.keys()
    if not isinstance(observation, dict):
        raise ValueError(
            f"{name}: {_kind(observation)} was returned, the space says a dict of {[*wanted]}"
        )
    if observation.keys() != wanted:
        raise ValueError(
            f"{name}: a dict of {[*observation]} was returned, the space says {[*wanted]}"
        )


def _below(name: str, key: Any) -> str:
    return f"{name}.{key}" if name else str(key)


def _travels_as(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.dtype[Any]:
    """Returns the dtype that is sent: for truth values uint8 where they have height and width, an
    image, else int8, as MultiBinary has it; numbers in the byte order of all machines we know, and
    no wider than torch has them."""
    if dtype.kind == "b":
        return np.dtype(np.uint8 if len(shape) >= 2 else np.int8)
    if dtype.kind not in "iuf" or dtype.itemsize > 8:
        raise TypeError(
            f"{name} is a Box of {dtype.name}, which is not supported; make it float32 in a wrapper"
            " (env.wrappers)"
        )
    # By its name it is numpy's one object for this type, which `is` finds.
    return np.dtype(dtype.name)


def _array(value: Any) -> Array:
    if isinstance(value, np.ndarray):
        return value
    try:
        return np.asarray(value)
    except ValueError:  # lists of different lengths
        return np.asarray(value, object)


def _fits(value: Any, array: Array, dtype: np.dtype[Any]) -> bool:
    """Says whether the value casts to `dtype`: within the same kind, and without changing an
    integer. Python's own numbers have no dtype, so only their values count."""
    if array.dtype == dtype:
        return True
    given = isinstance(value, np.ndarray | np.generic)
    if array.dtype.kind not in "biuf" or (
        given and not np.can_cast(array.dtype, dtype, "same_kind")
    ):
        return False
    with np.errstate(invalid="ignore"):  # not a number becomes some integer, and differs
        return dtype.kind == "f" or bool(np.array_equal(array.astype(dtype), array))


def _returned(leaf: Leaf, array: Array, lead: tuple[int, ...]) -> str:
    wanted = f"{np.dtype(leaf.dtype).name}{[*lead, *leaf.shape]}"
    given = f"{array.dtype.name}{[*array.shape]}"
    return f"{leaf.name}: {given} was returned, the space says {wanted}"


def _first(outside: NDArray[np.bool_]) -> tuple[int, ...]:
    return tuple(int(n) for n in np.argwhere(outside)[0])


def _at(place: tuple[int, ...]) -> str:
    return f" at {list(place)}" if place else ""


def _kind(observation: Any) -> str:
    return f"a {type(observation).__name__}"
