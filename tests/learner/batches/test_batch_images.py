"""Images in batches: packed on the way, bounded when they are unpacked; categories in range."""

import tracemalloc
from typing import Any

import lz4.block
import msgspec
import numpy as np
import pytest
import xxhash
from numpy.typing import NDArray

from headrace.broker.protocol.messages import Deliver
from headrace.learner.batches.batch import Batch
from headrace.learner.spaces import Action, Leaf, Part, Spaces, discrete, unroll_fields
from tests.learner.unrolls import words as told

SPACES = Spaces(
    (
        Leaf("eye", "|u1", (32, 32), stack=2),
        Leaf("gear", "<i8", (), categories=(3,)),
        Leaf("dials", "<i8", (2,), categories=(2, 5)),
    ),
    discrete(2),
)
T, G = 3, 2
Arrays = dict[str, NDArray[Any]]


def unroll(seed: int = 0) -> Arrays:
    rng = np.random.default_rng(seed)
    arrays = {}
    for field in unroll_fields(SPACES, length=T, envs=G):
        kind = np.dtype(field.dtype)
        arrays[field.name] = rng.integers(0, 2, field.shape).astype(kind)
    arrays["obs.eye"] = rng.integers(0, 256, arrays["obs.eye"].shape).astype(np.uint8)
    arrays["flags"][:] = 0
    return arrays


def packed(eye: NDArray[np.uint8]) -> bytes:
    body: bytes = lz4.block.compress(
        np.ascontiguousarray(eye.swapaxes(0, 1)).tobytes(), store_size=False
    )
    return body


def message(arrays: Arrays, eye: bytes | None = None) -> tuple[Deliver, list[bytes]]:
    first = packed(arrays["obs.eye"]) if eye is None else eye
    buffers = [first, *(array.tobytes() for name, array in arrays.items() if name != "obs.eye")]
    deliver = Deliver(
        tag=1,
        attempt=1,
        actor="a",
        inc=5,
        stream=1,
        seq=0,
        floor=0,
        version_min=0,
        version_max=0,
        steps=T * G,
        digest=xxhash.xxh3_64_intdigest(b"".join(buffers)),
        ended=0,
        episodes=(),
    )
    return deliver, buffers


def batch() -> Batch:
    return Batch(SPACES, length=T, envs=G, unrolls=2, pinned=False)


def test_images_lie_in_their_columns_with_their_history() -> None:
    own, first, second = batch(), unroll(1), unroll(2)
    assert own.place(*message(first)) is None
    assert own.place(*message(second)) is None
    assert own.tensors["obs.eye"].shape == (T + 2, 2 * G, 32, 32)
    for name in ("obs.eye", "obs.gear", "obs.dials", "action"):
        expected = np.concatenate([first[name], second[name]], axis=1)
        np.testing.assert_array_equal(own.tensors[name].numpy(), expected)


@pytest.mark.parametrize(
    ("eye", "words"),
    [
        (b"", "obs.eye is no LZ4 block of 10240 bytes"),
        (b"\xff" * 50, "obs.eye is no LZ4 block of 10240 bytes"),
        (lz4.block.compress(bytes(10239), store_size=False), "unpacks to 10239 bytes"),
        # One byte too many, and a bomb of 2 MiB in 8 kB: neither gets more room than declared.
        (lz4.block.compress(bytes(10241), store_size=False), "no LZ4 block of 10240 bytes"),
        (lz4.block.compress(bytes(2 << 20), store_size=False), "no LZ4 block of 10240 bytes"),
        # No block is longer than what it packs: this one is not even looked at.
        (lz4.block.compress(bytes(64 << 20), store_size=False), "263182 packed bytes for 10240"),
    ],
)
def test_what_does_not_unpack_to_the_declared_size_is_refused(eye: bytes, words: str) -> None:
    own = batch()
    assert words in told(own.place(*message(unroll(), eye)))
    assert own.room == 2


@pytest.mark.parametrize(
    ("name", "at", "value"),
    [
        ("obs.gear", (0, 0), 3),
        ("obs.gear", (T, 1), -1),
        ("obs.dials", (1, 0, 0), 2),
        ("obs.dials", (1, 0, 1), 5),
    ],
)
def test_a_category_that_does_not_exist_is_refused(
    name: str, at: tuple[int, ...], value: int
) -> None:
    arrays = unroll()
    arrays[name][at] = value
    words = f"{name} holds a category outside its space"
    assert told(batch().place(*message(arrays))) == words


def test_the_largest_category_is_one() -> None:
    arrays = unroll()
    arrays["obs.gear"][:], arrays["obs.dials"][..., 1] = 2, 4
    assert batch().place(*message(arrays)) is None


def test_what_travels_for_row_0_alone_lies_in_its_columns() -> None:
    spaces = Spaces((Leaf("obs", "<f4", (2,)),), Action((Part((), "<f4", (3,)),)))
    own = Batch(spaces, length=T, envs=G, unrolls=2, pinned=False, memory=4, previous=True)
    rng = np.random.default_rng(0)
    sent = []
    for _ in range(2):
        arrays = {
            field.name: rng.normal(size=field.shape).astype(field.dtype)
            for field in unroll_fields(spaces, length=T, envs=G, memory=4, previous=True)
        }
        arrays["flags"][:] = 0
        buffers = [array.tobytes() for array in arrays.values()]
        digest = xxhash.xxh3_64_intdigest(b"".join(buffers))
        assert (
            own.place(msgspec.structs.replace(message(unroll())[0], digest=digest), buffers) is None
        )
        sent.append(arrays)
    shapes = {"memory": (1, 2 * G, 4), "before.action": (1, 2 * G, 3), "before.reward": (1, 2 * G)}
    for name, shape in shapes.items():
        assert own.tensors[name].shape == shape
        expected = np.concatenate([arrays[name] for arrays in sent], axis=1)
        np.testing.assert_array_equal(own.tensors[name].numpy(), expected)


def test_noise_that_no_packing_makes_smaller_is_taken() -> None:
    own = batch()
    assert len(packed(unroll()["obs.eye"])) > 10240
    assert own.place(*message(unroll())) is None


@pytest.mark.parametrize("size", [2 << 20, 8 << 20])
def test_a_bomb_gets_no_more_memory_than_the_spaces_say(size: int) -> None:
    own, bomb = batch(), lz4.block.compress(bytes(size), store_size=False)[:10200]
    deliver, buffers = message(unroll(), bomb)
    own.place(deliver, buffers)
    tracemalloc.start()
    try:
        assert "no LZ4 block" in told(own.place(deliver, buffers))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * 10240
