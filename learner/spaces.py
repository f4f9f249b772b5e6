"""What the environment gives and takes, as plain data: it travels in HELLO and decides every shape.

observation: named leaves. A plain space is one leaf called "obs"; of a Dict or Tuple every part is
one, named by its path: "arm.joints", "1.camera". action: one discrete choice of n.
"""

import msgspec
import numpy as np
import xxhash
from msgspec import Struct

# An image this large is worth compressing.
_PACK_FROM_BYTES = 1024


class Leaf(Struct, frozen=True):
    """One array of an observation, without time and batch dimensions."""

    name: str
    dtype: str
    shape: tuple[int, ...]  # of one row, as it travels
    # How many values each element may take, counted from 0: n of a Discrete space (shape ()), one
    # number for each element of MultiDiscrete; () = a plain number.
    categories: tuple[int, ...] = ()
    # The network sees this many rows at once, oldest first. They travel once and are put side by
    # side where they are needed; before an episode's first row it sees that row again.
    stack: int = 1

    @property
    def seen(self) -> tuple[int, ...]:
        """The shape that the network sees."""
        return (self.stack, *self.shape) if self.stack > 1 else self.shape

    @property
    def image(self) -> bool:
        """Bytes with height and width."""
        return np.dtype(self.dtype) == np.uint8 and len(self.shape) >= 2

    @property
    def nbytes(self) -> int:
        """Of one row."""
        return int(np.dtype(self.dtype).itemsize * np.prod(self.shape, dtype=np.int64))


class Discrete(Struct, frozen=True, tag="discrete"):
    """Choose one of n."""

    n: int


class Spaces(Struct, frozen=True):
    """Both ends of an environment."""

    observation: tuple[Leaf, ...]
    action: Discrete

    def digest(self) -> str:
        """The same on every machine for the same spaces."""
        return xxhash.xxh3_64_hexdigest(msgspec.msgpack.encode(self))

    def __str__(self) -> str:
        return (
            f"observation {', '.join(map(_words, self.observation))};"
            f" action Discrete({self.action.n})"
        )


def _words(leaf: Leaf) -> str:
    stacked = f" x {leaf.stack} stacked" if leaf.stack > 1 else ""
    counted = f" of {list(leaf.categories)}" if leaf.categories else ""
    return f"{leaf.name} {np.dtype(leaf.dtype).name}{list(leaf.shape)}{counted}{stacked}"


class Field(Struct, frozen=True):
    """One buffer of an unroll: frames 2.. of an UNROLL message are these, in order."""

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
DEAD = 4  # the step that only resets: no loss, not counted; the next row begins an episode


def unroll_fields(spaces: Spaces, *, length: int, envs: int) -> tuple[Field, ...]:
    """The buffers of one unroll of T = length steps and G = envs columns, time first.

    Observations have T+1 rows: the last one is the first of the next unroll. A leaf that is seen
    stacked begins with the stack-1 rows that came before.
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
    return (
        *observations,
        Field("action", "int64", (length, envs)),
        Field("logp", "float32", (length, envs)),
        Field("reward", "float32", (length, envs)),
        Field("flags", "uint8", (length, envs)),
    )
