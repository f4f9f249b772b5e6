"""Weights in shared memory: whole and right, or not there."""

import itertools
import mmap
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.weights import blobs, common_chunks, weight_shelf
from headrace.broker.weights.blobs import Blob
from headrace.broker.weights.weight_shelf import SegmentReader, ShelfError, WeightShelf


def blob(version: int, size: int = 5000) -> Blob:
    return Blob.of(version, "layout", random.Random(version).randbytes(size))


@pytest.fixture
def shelf(tmp_path: Path) -> WeightShelf:
    return WeightShelf(tmp_path / "weights")


def test_what_is_put_is_taken(shelf: WeightShelf) -> None:
    reader = SegmentReader(shelf.path)
    assert reader.take(-1) is None, "nothing there yet"
    for version in range(5):
        shelf.put(blob(version))
        found = reader.take(version - 1)
        assert found is not None
        assert found.announce == blob(version).announce
        assert bytes(found.body) == bytes(blob(version).body)
        assert reader.take(version) is None, "known already"


def test_what_was_taken_stays_as_it_is(shelf: WeightShelf) -> None:
    reader = SegmentReader(shelf.path)
    shelf.put(blob(1))
    found = reader.take(0)
    for version in range(2, 5):
        shelf.put(blob(version))
    assert found is not None
    assert bytes(found.body) == bytes(blob(1).body)


def test_a_larger_model_gets_a_new_file_and_readers_follow(shelf: WeightShelf) -> None:
    reader = SegmentReader(shelf.path)
    shelf.put(blob(1))
    assert reader.take(0) is not None
    shelf.put(blob(2, size=70_000))
    found = reader.take(1)
    assert found is not None
    assert found.announce.version == 2
    assert list(shelf.path.parent.iterdir()) == [shelf.path]


def test_a_new_writer_takes_the_place_of_a_killed_one(shelf: WeightShelf) -> None:
    reader = SegmentReader(shelf.path)
    shelf.put(blob(7))
    assert reader.take(0) is not None
    again = WeightShelf(shelf.path)  # the first was killed: it retired nothing
    again.put(blob(8))
    assert SegmentReader(shelf.path).take(0) is not None
    found = reader.take(7)
    assert found is not None, "a reader notices the new file"
    assert found.announce.version == 8


def test_closed_it_is_gone(shelf: WeightShelf) -> None:
    reader = SegmentReader(shelf.path)
    shelf.put(blob(1))
    assert reader.take(0) is not None
    shelf.close()
    assert reader.take(0) is None
    assert list(shelf.path.parent.iterdir()) == []


@pytest.mark.parametrize(
    "at", [-10, -4990, 256 + 16, 256 + 40], ids=["end", "begin", "size", "digest"]
)
def test_every_damage_is_noticed(shelf: WeightShelf, at: int) -> None:
    shelf.put(blob(1))  # into slot 1
    raw = bytearray(shelf.path.read_bytes())
    raw[at] ^= 1
    shelf.path.write_bytes(raw)
    reader = SegmentReader(shelf.path)
    assert reader.take(0) is None
    assert reader.torn == 1


def changed(before: Blob, version: int, *chunks: int) -> Blob:
    """Returns a version that has these chunks otherwise."""
    body = bytearray(before.body)
    for at in chunks:
        body[at * before.announce.chunk] ^= 1
    return Blob.of(version, "layout", body)


def test_only_chunks_that_changed_are_copied(
    shelf: WeightShelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the writer since the version that lay in the slot, by a reader since the one it took."""
    written: list[int] = []

    def changed_pieces(*args: Any) -> Any:
        pieces = common_chunks.changed_pieces(*args)
        written.append(len(pieces))
        return pieces

    monkeypatch.setattr(weight_shelf, "changed_pieces", changed_pieces)
    reader, versions = SegmentReader(shelf.path), [blob(0, 20 * blobs.CHUNK_BYTES)]
    for version in range(1, 9):
        versions.append(changed(versions[-1], version, version, 2 * version))
    taken: list[Blob] = []
    for whole in versions:
        shelf.put(whole)
        found = reader.take(whole.announce.version - 1)
        assert found is not None
        assert found.announce == whole.announce
        assert [bytes(part) for part in found.parts] == [bytes(part) for part in whole.parts]
        taken.append(found)
    assert written == [20, 20, 2, *[4] * 6]  # since the version before last; chunk 2 is back
    for before, after in itertools.pairwise(taken[2:]):
        same = [one is other for one, other in zip(before.parts, after.parts, strict=True)]
        assert same.count(False) == 2


def test_after_missed_versions_damage_and_a_new_file_nothing_wrong_is_taken(
    shelf: WeightShelf,
) -> None:
    dice, reader, taken = random.Random(4), SegmentReader(shelf.path), 0
    whole = blob(0, 10 * blobs.CHUNK_BYTES)
    for version in range(1, 100):
        whole = changed(whole, version, *dice.sample(range(10), dice.randint(0, 3)))
        shelf.put(whole)
        match dice.randrange(8):
            case 0:
                damaged = bytearray(shelf.path.read_bytes())
                damaged[-1 - dice.randrange(5 * blobs.CHUNK_BYTES)] ^= 1
                shelf.path.write_bytes(damaged)
            case 1:
                shelf.close()
            case 2 | 3 | 4 | 5:
                found = reader.take(version - 1)
                taken += found is not None
                assert found is None or bytes(found.body) == bytes(whole.body)
    assert taken > 25


def test_while_a_slot_is_written_nothing_is_taken(shelf: WeightShelf) -> None:
    shelf.put(blob(1))
    raw = bytearray(shelf.path.read_bytes())
    raw[256] |= 1  # the sequence of slot 1
    shelf.path.write_bytes(raw)
    assert SegmentReader(shelf.path).take(0) is None


def test_a_description_read_while_it_was_written_is_not_believed(
    shelf: WeightShelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version from before a write, and digest and body from after it."""
    for version in (1, 2):
        shelf.put(blob(version))
    slot = weight_shelf._SLOT

    class Mixed:
        def unpack_from(self, shared: mmap.mmap, at: int) -> tuple[object, ...]:
            monkeypatch.setattr(weight_shelf, "_SLOT", slot)
            sequence, version, *_ = slot.unpack_from(shared, at)
            for newer in (3, 4):
                shelf.put(blob(newer))
            _, _, *after = slot.unpack_from(shared, at)
            return sequence, version, *after

    monkeypatch.setattr(weight_shelf, "_SLOT", Mixed())
    reader = SegmentReader(shelf.path)
    assert reader.take(0) is None
    assert reader.torn == 1
    monkeypatch.setattr(weight_shelf, "_SLOT", Mixed())
    found = reader.look()
    assert found is not None and found.version == -1


def test_what_is_no_shelf_is_left_alone(tmp_path: Path) -> None:
    for body in (b"", b"x" * 10_000, b"HRshelf2" + b"\xff" * 9000):
        (tmp_path / "other").write_bytes(body)
        assert SegmentReader(tmp_path / "other").take(-1) is None


def test_no_room_is_said_with_what_to_change(tmp_path: Path) -> None:
    with pytest.raises(ShelfError, match=r"no room .* make shared memory larger"):
        WeightShelf(tmp_path / "gone" / "weights").put(blob(1))


@pytest.mark.processes
def test_a_reader_beside_a_writer_that_never_stops(shelf: WeightShelf) -> None:
    """Two processes: what the reader gets is always one whole version, and they only rise."""
    bodies = [blob(version, 300_000) for version in range(40)]
    writer = os.fork()
    if not writer:
        try:
            while True:
                for at, whole in enumerate(bodies):
                    shelf.put(Blob.of(whole.announce.version, "layout", bodies[at].body))
        finally:
            os._exit(0)
    try:
        reader, taken = SegmentReader(shelf.path), 0
        while taken < 200:
            found = reader.take(-1)
            if found is not None:
                taken += 1
                # Not compared in the assertion: the difference of such bodies takes hours to show.
                right = bytes(found.body) == bytes(bodies[found.announce.version].body)
                assert right, f"version {found.announce.version} came with another's weights"
    finally:
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
