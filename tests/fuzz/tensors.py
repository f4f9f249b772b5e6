"""Targets: the learner's side of the bytes: unrolls into batches, weights into modules, files."""

import contextlib
import tempfile
from pathlib import Path

import lz4.block
import numpy as np
import torch
import xxhash

from headrace.broker.protocol.messages import Deliver
from headrace.learner.batches import recording as record
from headrace.learner.batches.batch import Batch
from headrace.learner.spaces import Action, Leaf, Part, Spaces, discrete, unroll_fields
from headrace.learner.weights import FlatWeights, WeightsError
from tests.fuzz.reading import Reader

_SPACES = (
    Spaces((Leaf("eye", "|u1", (32, 32), stack=2), Leaf("gear", "<i8", (), (3,))), discrete(2)),
    Spaces((Leaf("obs", "<f4", (3,)), Leaf("far", "<f8", (2,))), Action((Part((), "<f4", (2,)),))),
    Spaces((Leaf("obs", "<f4", (3,)), Leaf("allowed", "|i1", (4,), mask=True)), discrete(4)),
    Spaces((Leaf("obs", "<f4", (3,)),), discrete(4), ("won", "far")),
)
_T, _G = 3, 2
_BATCHES = [
    Batch(spaces, length=_T, envs=_G, unrolls=2, pinned=False, memory=2 * n, previous=n == 1)
    for n, spaces in enumerate(_SPACES)
]
_FIELDS = [
    unroll_fields(spaces, length=_T, envs=_G, memory=2 * n, previous=n == 1)
    for n, spaces in enumerate(_SPACES)
]


def honest(number: int) -> list[bytes]:
    """The buffers of an unroll that is taken."""
    buffers = []
    for field in _FIELDS[number]:
        body = bytes(field.nbytes)
        if field.name == "obs.allowed":
            body = b"\1" * field.nbytes
        buffers.append(lz4.block.compress(body, store_size=False) if field.packed else body)
    return buffers


def unroll(data: bytes) -> None:
    """Batch.place of an honest unroll in which bytes, sizes and counts are others: it says why not,
    or what lies in the batch is finite and inside its spaces."""
    reader = Reader(data)
    which = reader.byte() % len(_SPACES)
    batch, buffers = _BATCHES[which], [bytearray(body) for body in honest(which)]
    batch.clear()
    steps, ended, episodes = _T * _G, 0, tuple[tuple[int, float, int], ...]()
    for _ in range(reader.byte() % 5):
        doing, at = reader.byte() % 8, reader.byte() % len(buffers)
        if doing == 0:
            buffers[at] = bytearray(reader.take(reader.byte()))
        elif doing == 1:
            del buffers[at][reader.byte() :]
        elif doing == 2:
            buffers[at] += bytes(reader.byte())
        elif doing == 3:
            steps = reader.byte()
        elif doing == 4:
            spot = reader.pick((b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\0\0\0\0\0\0\xf8\x7f"))
            place = 4 * reader.byte() % max(1, len(buffers[at]))
            buffers[at][place : place + len(spot)] = spot
        elif doing == 5:
            ended = reader.pick((-1, 1, 7, 2**63, 2**64 - 1))
        elif doing == 6:
            returns = reader.pick((float("nan"), float("inf"), 1.0, 1e308))
            column = reader.pick((0, _G - 1, _G, -1))
            episodes = ((column, returns, reader.pick((-1, 0, 3, 2**64 - 1))),)
        else:
            place = reader.byte() * 256 + reader.byte()
            if buffers[at]:
                buffers[at][place % len(buffers[at])] ^= reader.byte()
    versions = reader.pick(((0, 0), (3, 4), (4, 3), (-1, 0), (0, 2**64 - 1)))
    digest = xxhash.xxh3_64_intdigest(b"".join(buffers)) ^ (reader.byte() == 255)
    message = Deliver(
        tag=1,
        attempt=1,
        actor="a",
        inc=1,
        stream=0,
        seq=0,
        floor=0,
        version_min=versions[0],
        version_max=versions[1],
        steps=steps,
        digest=digest,
        ended=ended,
        episodes=episodes,
    )
    objection = batch.place(message, buffers)
    assert (len(batch.keys) == 0) == (objection is not None)
    if objection is None:
        _sound(batch)


def _sound(batch: Batch) -> None:
    """What the train loop relies on."""
    for tensor in batch.tensors.values():
        assert not tensor.is_floating_point() or bool(tensor.float().isfinite().all())
    assert 0 <= batch.ended <= _T * _G
    for column, score, length in (end for unroll in batch.ends for end in unroll.episodes):
        assert 0 <= column < _G and np.isfinite(score) and 0 <= length <= 2**53
    for told in (unroll.metrics for unroll in batch.ends if unroll.metrics is not None):
        assert all(0 <= column < _G and len(lasts) == 2 for column, lasts in told.episodes)
        assert all(0 <= one.steps <= _T * _G and np.isfinite(one.total) for one in told.steps)
    assert all(0 <= low <= high <= 2**53 for low, high in batch.versions)


_MODULE = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
_WEIGHTS = FlatWeights(_MODULE)
_BODY = _WEIGHTS.dump()


def weights(data: bytes) -> None:
    """FlatWeights.load: all of it and finite, or none of it."""
    before = _WEIGHTS.dump()
    body = data if len(data) % 2 else (data + _BODY[len(data) :])
    try:
        _WEIGHTS.load(body)
    except WeightsError:
        assert _WEIGHTS.dump() == before
        return
    assert _WEIGHTS.dump() == body
    assert all(bool(value.float().isfinite().all()) for value in _MODULE.state_dict().values())


_FOLDER = tempfile.TemporaryDirectory(prefix="headrace-fuzz-")


def recording(data: bytes) -> None:
    """A recording's file: first as it is, then with the length and hash that an entry needs."""
    path = Path(_FOLDER.name) / "rank0.log"
    for body in (data, record._PREFIX.pack(len(data), xxhash.xxh3_64_intdigest(data)) + data):
        path.write_bytes(body)
        list(record.entries(path))
        with contextlib.suppress(record.RecordError):
            record.opening(path)
