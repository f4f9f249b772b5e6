"""What the environment gives and takes, as plain data: it travels in HELLO and decides every shape.

observation: named leaves (a plain Box is one leaf called "obs"); action: one discrete choice of n.
"""

import msgspec
import numpy as np
import xxhash
from msgspec import Struct


class Leaf(Struct, frozen=True):
    """One array of an observation, without time and batch dimensions."""

    name: str
    dtype: str
    shape: tuple[int, ...]


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
        leaves = ", ".join(
            f"{leaf.name} {np.dtype(leaf.dtype).name}{list(leaf.shape)}"
            for leaf in self.observation
        )
        return f"observation {leaves}; action Discrete({self.action.n})"


class Field(Struct, frozen=True):
    """One buffer of an unroll: frames 2.. of an UNROLL message are these, in order."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return int(np.dtype(self.dtype).itemsize * np.prod(self.shape, dtype=np.int64))


# What happened at a step, as bits of the `flags` field.
TERMINATED = 1  # the episode ended: no value beyond
TRUNCATED = 2  # the episode was cut: bootstrap with the value of the next row
DEAD = 4  # the step that only resets after an end: no loss, not counted


def unroll_fields(spaces: Spaces, *, length: int, envs: int) -> tuple[Field, ...]:
    """The buffers of one unroll of T = length steps and G = envs columns, time first.

    Observations have T+1 rows: the last one is the first of the next unroll.
    """
    observations = tuple(
        Field(f"obs.{leaf.name}", leaf.dtype, (length + 1, envs, *leaf.shape))
        for leaf in spaces.observation
    )
    return (
        *observations,
        Field("action", "int64", (length, envs)),
        Field("logp", "float32", (length, envs)),
        Field("reward", "float32", (length, envs)),
        Field("flags", "uint8", (length, envs)),
    )
