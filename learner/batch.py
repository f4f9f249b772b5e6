"""Unrolls become one time-major batch, in memory that is used again, and pinned for a GPU."""

import math
from collections.abc import Sequence
from typing import Any

import lz4.block
import numpy as np
import torch
import xxhash
import zmq
from numpy.typing import NDArray
from torch import Tensor

from broker.fields import MAX_VERSION
from broker.inbox import Key
from broker.wire import Deliver, Payload
from learner.score import Ends
from learner.spaces import DEAD, TERMINATED, TRUNCATED, Action, Field, Spaces, unroll_fields

# Steps of one episode; more no run lives to see.
_LONGEST = 1 << 53


class Batch:
    """`unrolls` unrolls of `envs` columns side by side: [rows, unrolls * envs, ...]."""

    def __init__(
        self,
        spaces: Spaces,
        *,
        length: int,
        envs: int,
        unrolls: int,
        pinned: bool,
        memory: int = 0,
        previous: bool = False,
    ) -> None:
        self.unrolls = unrolls
        self._envs = envs
        self._length = length
        self._action = spaces.action
        self._fields = unroll_fields(
            spaces, length=length, envs=envs, memory=memory, previous=previous
        )
        self._within = " x ".join(f"0..{n - 1}" for n in spaces.action.categories)
        self._mask = next((f"obs.{leaf.name}" for leaf in spaces.observation if leaf.mask), "")
        self._counted = [leaf for leaf in spaces.observation if leaf.categories]
        self.tensors: dict[str, Tensor] = {
            field.name: torch.zeros(
                (field.shape[0], unrolls * envs, *field.shape[2:]),
                dtype=torch.from_numpy(np.empty(0, field.dtype)).dtype,
                pin_memory=pinned,
            )
            for field in self._fields
        }
        self._arrays = {name: tensor.numpy() for name, tensor in self.tensors.items()}
        self.keys: list[Key] = []  # unrolls placed, in order of their columns
        self.versions: list[tuple[int, int]] = []  # min and max each was acted with
        self.ends: list[Ends] = []  # of each unroll, in the same order
        self.ended = 0
        self.steps = 0  # live ones

    @property
    def free(self) -> int:
        return self.unrolls - len(self.keys)

    def clear(self) -> None:
        self.keys.clear()
        self.versions.clear()
        self.ends.clear()
        self.ended = self.steps = 0

    def place(self, message: Deliver, buffers: Sequence[Payload]) -> str:
        """Copies an unroll into the next columns; "" or why it cannot be used."""
        views = [b.buffer if isinstance(b, zmq.Frame) else memoryview(b) for b in buffers]
        reason = self._damage(message, views) or self._false_claim(message)
        if reason:
            return reason
        try:
            arrays = {f.name: _array(f, view) for f, view in zip(self._fields, views, strict=True)}
        except ValueError as error:
            return str(error)
        reason = self._nonsense(message, arrays)
        if reason:
            return reason
        lo = len(self.keys) * self._envs
        columns = slice(lo, lo + self._envs)
        for name, array in arrays.items():
            self._arrays[name][:, columns] = array
        self.keys.append((message.inc, message.stream, message.seq))
        self.versions.append((message.version_min, message.version_max))
        self.ends.append(
            Ends(message.inc, message.stream, self._envs, self._length, message.episodes)
        )
        self.ended += message.ended
        self.steps += message.steps
        return ""

    def _damage(self, message: Deliver, views: Sequence[memoryview]) -> str:
        """Not what was sent, or not of our shapes."""
        if len(views) != len(self._fields):
            return f"{len(views)} buffers instead of {len(self._fields)}"
        digest = xxhash.xxh3_64()
        for field, view in zip(self._fields, views, strict=True):
            if not field.packed and view.nbytes != field.nbytes:
                return f"{field.name} has {view.nbytes} bytes instead of {field.nbytes}"
            if field.packed and view.nbytes > _most_packed(field.nbytes):
                return f"{field.name} has {view.nbytes} packed bytes for {field.nbytes}"
            digest.update(view)
        if digest.intdigest() != message.digest:
            return "its digest is wrong: the buffers are not those that were sent"
        return ""

    def _nonsense(self, message: Deliver, arrays: dict[str, NDArray[Any]]) -> str:
        """What no environment of this run can have given."""
        for name, array in arrays.items():
            if array.dtype.kind == "f" and not _finite(array):
                return f"{name} is not finite"
        for leaf in self._counted:
            array = arrays[f"obs.{leaf.name}"]
            limit = np.reshape(leaf.categories, leaf.shape)
            if (array < 0).any() or (array >= limit).any():
                return f"obs.{leaf.name} holds a category outside its space"
        flags = arrays["flags"]
        choices = _choices(arrays["action"], self._action)
        if not _inside(choices, self._action, least=0):
            return f"an action outside {self._within}"
        if "before.action" in arrays and not _inside(
            _choices(arrays["before.action"], self._action), self._action, least=-1
        ):
            return f"before row 0 an action outside {self._within}"
        if flags.max() > TERMINATED | TRUNCATED | DEAD:
            return "unknown flags"
        if self._mask:
            # What a dead step was sent is ignored, and its mask may be that of an episode's end.
            live = (flags & DEAD) == 0
            reason = _forbidden(choices, arrays[self._mask][:-1] != 0, live, self._action)
            if reason:
                return reason
        if flags.size - np.count_nonzero(flags & DEAD) != message.steps:
            return "its live steps are miscounted"
        return ""

    def _false_claim(self, message: Deliver) -> str:
        """What its sampler says of an unroll goes into means, limits and checkpoints."""
        low, high = message.version_min, message.version_max
        if not 0 <= low <= high <= MAX_VERSION:
            return f"it was acted with versions {low} to {high}"
        cells = self._length * self._envs
        if not 0 <= message.ended <= cells:
            return f"{message.ended} episodes ended in {cells} steps"
        for column, score, length in message.episodes:
            if not 0 <= column < self._envs:
                return f"an episode of environment {column}, and it has {self._envs}"
            if not math.isfinite(score) or not 0 <= length <= _LONGEST:
                return f"an episode of return {score} and length {length}"
        return ""


def _most_packed(nbytes: int) -> int:
    """No LZ4 block of so many bytes is longer; more would only be hashed for nothing."""
    return nbytes + nbytes // 255 + 16


def _finite(array: NDArray[Any]) -> bool:
    """As the network sees it: what float32 cannot hold is infinite there."""
    if array.dtype.itemsize > 4:
        with np.errstate(over="ignore"):
            array = array.astype(np.float32)
    return bool(np.isfinite(array).all())


def _choices(rows: NDArray[Any], action: Action) -> NDArray[Any]:
    """Of rows [..., *action.shape]: [..., C]."""
    return rows[..., None] if action.single else rows[..., : len(action.categories)]


def _inside(choices: NDArray[Any], action: Action, *, least: int) -> bool:
    """Whole numbers, each within its categories."""
    limits = np.array(action.categories, np.int64)
    whole = choices.dtype.kind == "i" or bool((choices == np.floor(choices)).all())
    return whole and bool(((choices >= least) & (choices < limits)).all())


def _forbidden(
    choices: NDArray[Any], allowed: NDArray[np.bool_], live: NDArray[np.bool_], action: Action
) -> str:
    """What is wrong with choices [T, G, C] under masks [T, G, sum(categories)]; "" = nothing."""
    starts = np.cumsum((0, *action.categories), dtype=np.int64)[:-1]
    if not np.logical_or.reduceat(allowed[live], starts, axis=-1).all():
        return "a mask that allows nothing"
    places = choices[live].astype(np.int64) + starts
    if not np.take_along_axis(allowed[live], places, axis=-1).all():
        return "an action that the mask forbids"
    return ""


def _array(field: Field, view: memoryview) -> NDArray[Any]:
    """Time first. An unpacked block has the declared size or is refused: no bomb goes off here."""
    if not field.packed:
        return np.frombuffer(view, field.dtype).reshape(field.shape)
    try:
        body = lz4.block.decompress(view, uncompressed_size=field.nbytes)
    except lz4.block.LZ4BlockError:
        raise ValueError(f"{field.name} is no LZ4 block of {field.nbytes} bytes") from None
    if len(body) != field.nbytes:
        raise ValueError(f"{field.name} unpacks to {len(body)} bytes instead of {field.nbytes}")
    time, columns, *rest = field.shape
    return np.frombuffer(body, field.dtype).reshape(columns, time, *rest).swapaxes(0, 1)
