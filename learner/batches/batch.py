"""A time-major batch of unrolls, in memory that is used again, and pinned for a GPU."""

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

from headrace.broker.peers.inbox import Key
from headrace.broker.peers.objections import Objection
from headrace.broker.protocol.fields import MAX_VERSION
from headrace.broker.protocol.messages import Deliver, Payload
from headrace.learner.batches.step_ages import UnrollAge
from headrace.learner.batches.unroll_ends import EpisodeEnds, ends_of, false_metrics
from headrace.learner.config import UnrollConfig
from headrace.learner.spaces import (
    DEAD,
    TERMINATED,
    TRUNCATED,
    Action,
    Field,
    Spaces,
    out_of_bounds,
    out_of_bounds_words,
    unroll_fields,
)

# Steps of one episode; no run lasts longer.
_LONGEST = 1 << 53
# By this factor rounding may make a sum of rewards larger than they allow.
_ROUNDED = 1.001


class Batch:
    """Holds `unrolls` unrolls of `envs` columns side by side: [rows, unrolls * envs, ...]."""

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
        largest: float = UnrollConfig().largest,
    ) -> None:
        self.unrolls = unrolls
        self.largest = largest  # no float lies beyond +- this
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
        self.messages: list[Deliver] = []  # of the unrolls placed, in order of their columns

    @property
    def room(self) -> int:
        return self.unrolls - len(self.messages)

    @property
    def keys(self) -> list[Key]:
        return [(one.inc, one.stream, one.seq) for one in self.messages]

    @property
    def versions(self) -> list[tuple[int, int]]:
        """Returns the least and greatest version that each unroll was acted with."""
        return [(one.version_min, one.version_max) for one in self.messages]

    def ages(self, version: int) -> tuple[UnrollAge, ...]:
        """Returns how many versions before this one each unroll was played."""
        return tuple(
            UnrollAge(version - one.version_min, version - one.version_max, one.steps)
            for one in self.messages
        )

    @property
    def ends(self) -> list[EpisodeEnds]:
        return ends_of(self.messages, self._arrays, self._envs)

    @property
    def ended(self) -> int:
        return sum(one.ended for one in self.messages)

    @property
    def steps(self) -> int:
        """Counts the live steps."""
        return sum(one.steps for one in self.messages)

    def clear(self) -> None:
        self.messages.clear()

    def drop(self, places: Sequence[int]) -> None:
        """Takes these unrolls out; the others move together, in their order."""
        kept = [at for at in range(len(self.messages)) if at not in places]
        columns = [at * self._envs + column for at in kept for column in range(self._envs)]
        for array in self._arrays.values():
            array[:, : len(columns)] = array[:, columns]
        self.messages = [self.messages[at] for at in kept]

    def place(self, message: Deliver, buffers: Sequence[Payload]) -> Objection | None:
        """Copies an unroll into the next columns; returns why it cannot be used, if it cannot."""
        views = [b.buffer if isinstance(b, zmq.Frame) else memoryview(b) for b in buffers]
        if words := self._damage(message, views):
            return Objection("damaged", words)
        if words := self._false_claim(message):
            return Objection("claim", words)
        try:
            arrays = {f.name: _array(f, view) for f, view in zip(self._fields, views, strict=True)}
        except ValueError as error:
            return Objection("damaged", str(error))
        if objection := self._nonsense(message, arrays):
            return objection
        lo = len(self.messages) * self._envs
        columns = slice(lo, lo + self._envs)
        for name, array in arrays.items():
            self._arrays[name][:, columns] = array
        self.messages.append(message)
        return None

    def _damage(self, message: Deliver, views: Sequence[memoryview]) -> str:
        """Says how these buffers differ from those sent, or from our shapes; "" = not at all."""
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

    def _nonsense(self, message: Deliver, arrays: dict[str, NDArray[Any]]) -> Objection | None:
        """Objects to contents that no environment of this run can have given."""
        if "metrics" in arrays and (words := false_metrics(arrays["metrics"], self._length)):
            return Objection("metrics", words)
        for name, array in arrays.items():
            number = None if name == "metrics" else out_of_bounds(array, self.largest)
            if number is not None:
                reason = _reason(name) if math.isfinite(number) else "not_finite"
                return Objection(reason, out_of_bounds_words(name, number, self.largest))
        for leaf in self._counted:
            array = arrays[f"obs.{leaf.name}"]
            limit = np.reshape(leaf.categories, leaf.shape)
            if (array < 0).any() or (array >= limit).any():
                words = f"obs.{leaf.name} holds a category outside its space"
                return Objection("observation", words)
        if words := self._impossible(arrays):
            return Objection("action", words)
        flags = arrays["flags"]
        if flags.max() > TERMINATED | TRUNCATED | DEAD:
            return Objection("claim", "unknown flags")
        if flags.size - np.count_nonzero(flags & DEAD) != message.steps:
            return Objection("claim", "its live steps are miscounted")
        return None

    def _impossible(self, arrays: dict[str, NDArray[Any]]) -> str:
        """Says what is wrong with its actions; "" = nothing."""
        choices = _choices(arrays["action"], self._action)
        if not _inside(choices, self._action, least=0):
            return f"an action outside {self._within}"
        if "before.action" in arrays and not _inside(
            _choices(arrays["before.action"], self._action), self._action, least=-1
        ):
            return f"before row 0 an action outside {self._within}"
        if self._mask:
            # What a dead step was sent is ignored, and its mask may be that of an episode's end.
            live = (arrays["flags"] & DEAD) == 0
            return _forbidden(choices, arrays[self._mask][:-1] != 0, live, self._action)
        return ""

    def _false_claim(self, message: Deliver) -> str:
        """Says what is wrong with the numbers that its sampler claims; "" = nothing."""
        low, high = message.version_min, message.version_max
        if not 0 <= low <= high <= MAX_VERSION:
            return f"it was acted with versions {low} to {high}"
        cells = self._length * self._envs
        if not 0 <= message.ended <= cells:
            return f"{message.ended} episodes ended in {cells} steps"
        for column, score, length in message.episodes:
            if not 0 <= column < self._envs:
                return f"an episode of environment {column}, and it has {self._envs}"
            most = _ROUNDED * self.largest * max(length, 1)
            if not 0 <= length <= _LONGEST or not abs(score) <= most:
                return f"an episode of return {score} and length {length}"
        return ""


def _most_packed(nbytes: int) -> int:
    """Returns the longest LZ4 block of `nbytes` bytes; hashing more would be wasted work."""
    return nbytes + nbytes // 255 + 16


def _reason(name: str) -> str:
    """Returns the label of that field where refused unrolls are counted."""
    kind, _, rest = name.partition(".")
    return {"obs": "observation", "before": rest}.get(kind, kind)


def _choices(rows: NDArray[Any], action: Action) -> NDArray[Any]:
    """Picks the choices [..., C] of rows [..., *action.shape]."""
    return rows[..., None] if action.single else rows[..., : len(action.categories)]


def _inside(choices: NDArray[Any], action: Action, *, least: int) -> bool:
    """Tells whether these are whole numbers, each within its categories."""
    limits = np.array(action.categories, np.int64)
    whole = choices.dtype.kind == "i" or bool((choices == np.floor(choices)).all())
    return whole and bool(((choices >= least) & (choices < limits)).all())


def _forbidden(
    choices: NDArray[Any], allowed: NDArray[np.bool_], live: NDArray[np.bool_], action: Action
) -> str:
    """Says how choices [T, G, C] break the masks [T, G, sum(categories)]; "" = not at all."""
    starts = np.cumsum((0, *action.categories), dtype=np.int64)[:-1]
    if not np.logical_or.reduceat(allowed[live], starts, axis=-1).all():
        return "a mask that allows nothing"
    places = choices[live].astype(np.int64) + starts
    if not np.take_along_axis(allowed[live], places, axis=-1).all():
        return "an action that the mask forbids"
    return ""


def _array(field: Field, view: memoryview) -> NDArray[Any]:
    """Returns the field's array, time first. An LZ4 block that does not unpack to exactly the
    declared size is refused, so no decompression bomb goes off here."""
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
