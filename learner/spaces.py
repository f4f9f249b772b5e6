"""Observations and actions as plain data, which travels in HELLO and decides every shape.

observation: named leaves. A plain space is one leaf called "obs"; of a Dict or Tuple every part is
one, named by its path: "arm.joints", "1.camera".

action: parts, in the same order. The policy's answer is one row for each environment: first the
choices of all parts, counted from 0, then the numbers of all Boxes, as the policy drew them.
"""

import math
from typing import Any

import msgspec
import numpy as np
import xxhash
from msgspec import Struct
from numpy.typing import NDArray

# An image this large is worth compressing.
_PACK_FROM_BYTES = 1024
POLICY = "policy"  # the leaf that says which policy of a population plays
# The network sees the reward of the step before within these, and its numbers without bounds.
SHOWN_REWARD, SHOWN_UNBOUNDED = 1.0, 10.0


class Leaf(Struct, frozen=True):
    """Describes one array of an observation, without time and batch dimensions."""

    name: str
    dtype: str
    shape: tuple[int, ...]  # of one row, as it travels
    # How many values each element may take, counted from 0: n of a Discrete space (shape ()), one
    # number for each element of MultiDiscrete; () = a plain number.
    categories: tuple[int, ...] = ()
    start: tuple[int, ...] = ()  # the first value of each, as the environment counts; () = all 0
    # The network sees this many rows at once, oldest first. They travel once and are put side by
    # side where they are needed; before an episode's first row it sees that row again.
    stack: int = 1
    # Not for the network to see: it says which choices of the action are allowed, one byte for each
    # category, 0 = not now.
    mask: bool = False

    @property
    def seen(self) -> tuple[int, ...]:
        """Returns the shape that the network sees."""
        return (self.stack, *self.shape) if self.stack > 1 else self.shape

    @property
    def image(self) -> bool:
        """Tells whether these are bytes with height and width."""
        return np.dtype(self.dtype) == np.uint8 and len(self.shape) >= 2

    @property
    def nbytes(self) -> int:
        """Returns the bytes of one row."""
        return int(np.dtype(self.dtype).itemsize * np.prod(self.shape, dtype=np.int64))


class Part(Struct, frozen=True):
    """Describes one Discrete, MultiDiscrete, MultiBinary or Box of an action."""

    path: tuple[str | int, ...]  # keys of Dicts, places in Tuples; () = the action has no parts
    dtype: str  # of what the environment is given
    shape: tuple[int, ...]
    categories: tuple[int, ...] = ()  # how many values each element may take; () = a Box
    start: tuple[int, ...] = ()  # the first value of each element with categories
    low: tuple[float, ...] = ()  # of each number of a Box; without bound it is -inf
    high: tuple[float, ...] = ()

    @property
    def bounded(self) -> tuple[bool, ...]:
        """Tells of each number of a Box whether it has bounds on both sides."""
        ends = zip(self.low, self.high, strict=True)
        return tuple(math.isfinite(low) and math.isfinite(high) for low, high in ends)


class Action(Struct, frozen=True):
    """Describes what the policy decides at every step."""

    parts: tuple[Part, ...]
    # Numbers of bounded Boxes: False = cut at the bounds; True = squashed into them by tanh.
    squash: bool = False

    @property
    def categories(self) -> tuple[int, ...]:
        """Returns the categories of every choice in a row, in order."""
        return tuple(n for part in self.parts for n in part.categories)

    @property
    def numbers(self) -> int:
        """Counts the numbers that follow the choices."""
        return sum(math.prod(part.shape) for part in self.parts if not part.categories)

    @property
    def squashed(self) -> tuple[bool, ...]:
        """Tells of each number whether it is squashed by tanh, so that it fits its bounds."""
        return tuple(self.squash and bounded for part in self.parts for bounded in part.bounded)

    @property
    def shown(self) -> tuple[float, ...]:
        """Returns at what size each number is cut where the network sees the step before; in units
        of half its range, if it has one."""
        ends = (bounded for part in self.parts for bounded in part.bounded)
        return tuple(1.0 if bounded else SHOWN_UNBOUNDED for bounded in ends)

    @property
    def single(self) -> bool:
        """Tells whether it is one choice and nothing else: a row is then a plain number."""
        return len(self.parts) == 1 and bool(self.parts[0].categories) and not self.parts[0].shape

    @property
    def shape(self) -> tuple[int, ...]:
        """Returns the shape of one row."""
        return () if self.single else (len(self.categories) + self.numbers,)

    @property
    def dtype(self) -> str:
        """Returns the dtype of a row; beside numbers the choices, which are small, are float32
        too."""
        return "float32" if self.numbers else "int64"


def discrete(n: int) -> Action:
    """Returns the action that chooses one of n."""
    return Action((Part((), "int64", (), (n,), (0,)),))


class Spaces(Struct, frozen=True, omit_defaults=True):
    """Holds both ends of an environment."""

    observation: tuple[Leaf, ...]
    action: Action
    metrics: tuple[str, ...] = ()  # entries of info that travel; no network depends on them
    settings: tuple[str, ...] = ()  # attributes of the environment that the weights bring
    critic: tuple[str, ...] = ()  # leaves that only the value network sees
    population: int = 0  # its policies; the leaf POLICY says which of them plays
    binary: tuple[str, ...] = ()  # images whose bytes are 0 or 1 only

    def digest(self) -> str:
        """Returns a digest, on every machine the same for the same spaces; names do not count."""
        return xxhash.xxh3_64_hexdigest(
            msgspec.msgpack.encode(Spaces(self.observation, self.action))
        )

    def __str__(self) -> str:
        return (
            f"observation {', '.join(map(_words, self.observation))};"
            f" action {', '.join(map(_part_words, self.action.parts))}"
        )


def _words(leaf: Leaf) -> str:
    stacked = f" x {leaf.stack} stacked" if leaf.stack > 1 else ""
    counted = f" of {list(leaf.categories)}" if leaf.categories else ""
    return f"{leaf.name} {np.dtype(leaf.dtype).name}{list(leaf.shape)}{counted}{stacked}"


def _part_words(part: Part) -> str:
    name = ".".join(map(str, part.path))
    counted: Any = list(part.categories) if part.shape else sum(part.categories)
    kind = f"choice of {counted}" if part.categories else f"Box{list(part.shape)}"
    return f"{name} {kind}" if name else kind


class Field(Struct, frozen=True):
    """Describes one buffer of an unroll: frames 2.. of an UNROLL message are these, in order."""

    name: str
    dtype: str
    shape: tuple[int, ...]  # time first, then columns
    # An image: on the wire columns come before time, so that a frame lies beside the one it
    # resembles, and the whole is one LZ4 block of `nbytes` when unpacked.
    packed: bool = False

    @property
    def nbytes(self) -> int:
        return int(np.dtype(self.dtype).itemsize * np.prod(self.shape, dtype=np.int64))


# What happened at a step, as bits of the `flags` field.
TERMINATED = 1  # the episode ended: no value beyond
TRUNCATED = 2  # the episode was cut: bootstrap with the value of the next row
# No loss, not counted; the next row begins an episode: the step only resets, or it was not played,
# because the unroll ended early.
DEAD = 4

# Of each environment and metric in the `metrics` field. ENDED: 0 = no episode ended in the unroll,
# 1 = the latest that ended never gave the metric, 2 = it did, and LAST is its last value there. The
# others are of the unroll's steps that gave it: how many, and their mean, least and greatest value.
ENDED, LAST, STEPS, MEAN, LEAST, MOST = FIGURES = range(6)
LARGEST_METRIC = 1e15  # no number of a metric lies beyond +- this


def unroll_fields(
    spaces: Spaces, *, length: int, envs: int, memory: int = 0, previous: bool = False
) -> tuple[Field, ...]:
    """Returns the buffers of one unroll of T = length steps and G = envs columns, time first.

    Observations have T+1 rows: the one after the last step is the first of the next unroll. A leaf
    that is seen stacked begins with the stack-1 rows before. `memory`: numbers of a recurrent
    network; the unroll holds those it had at row 0. `previous`: it holds action and reward before
    row 0; an action of -1 (of 0, in numbers) and a reward of 0 mean that an episode begins.
    """
    observations = tuple(
        Field(
            f"obs.{leaf.name}",
            leaf.dtype,
            (length + leaf.stack, envs, *leaf.shape),
            packed=leaf.image and leaf.nbytes >= _PACK_FROM_BYTES,
        )
        for leaf in spaces.observation
    )
    action, names = spaces.action, spaces.metrics
    memories = (Field("memory", "float32", (1, envs, memory)),) if memory else ()
    before = (
        Field("before.action", action.dtype, (1, envs, *action.shape)),
        Field("before.reward", "float32", (1, envs)),
    )
    return (
        *observations,
        Field("action", action.dtype, (length, envs, *action.shape)),
        Field("logp", "float32", (length, envs)),
        Field("reward", "float32", (length, envs)),
        Field("flags", "uint8", (length, envs)),
        *memories,
        *(before if previous else ()),
        *((Field("metrics", "<f8", (1, envs, len(names), len(FIGURES))),) if names else ()),
    )


def out_of_bounds(array: NDArray[Any], largest: float) -> float | None:
    """Returns the first number that is not finite, or not within +- largest; None = all are."""
    if array.dtype.kind != "f" or not array.size:
        return None
    if float(array.max()) <= largest and float(array.min()) >= -largest:  # so no NaN passes
        return None
    wide = array.astype(np.float64)
    return float(wide[~(np.abs(wide) <= largest)].flat[0])


def out_of_bounds_words(name: str, number: float, largest: float) -> str:
    """Says what `out_of_bounds` found, for a person."""
    if not math.isfinite(number):
        return f"{name} is not finite"
    return f"{name} has {number:.3g}, beyond unroll.largest = {largest:g}"


def previous_leaves(spaces: Spaces) -> tuple[Leaf, ...]:
    """Returns what the network sees of the step before, as further leaves of the observation.

    Choices are -1, numbers and the reward 0, where an episode begins.
    """
    action = spaces.action
    categories = action.categories
    choices = (Leaf("previous.choices", "<i8", (len(categories),), categories),)
    numbers = (Leaf("previous.numbers", "<f4", (action.numbers,)),)
    return (
        *(choices if categories else ()),
        *(numbers if action.numbers else ()),
        Leaf("previous.reward", "<f4", ()),
    )
