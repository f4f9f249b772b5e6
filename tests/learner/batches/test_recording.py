"""A recording: what goes in comes out in the same order, and nothing false ever does."""

import io
import logging
import resource
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import xxhash
import zmq

from headrace.broker.peers.objections import Objection
from headrace.broker.protocol.messages import Deliver, Payload
from headrace.learner.batches import recording
from headrace.learner.batches.batch import Batch
from headrace.learner.batches.receiver import UnrollReceiver
from headrace.learner.batches.recording import (
    Accepted,
    Closed,
    Entry,
    Full,
    Opened,
    RecordedSource,
    Recorder,
    RecordError,
    Refilled,
    Rejected,
    Trained,
)
from headrace.learner.spaces import Leaf, Spaces, discrete
from tests.learner.unrolls import words

SPACES = Spaces((Leaf("obs", "<f4", (3,)),), discrete(2))
T, G, UNROLLS = 4, 2, 2


def unroll(seq: int, **changes: Any) -> tuple[Deliver, list[Payload]]:
    """Every number is another."""
    rng = np.random.default_rng(seq)
    buffers: list[Payload] = [
        rng.normal(size=(T + 1, G, 3)).astype(np.float32).tobytes(),
        rng.integers(0, 2, (T, G)).tobytes(),
        (-rng.random((T, G), np.float32)).tobytes(),
        rng.normal(size=(T, G)).astype(np.float32).tobytes(),
        np.zeros((T, G), np.uint8).tobytes(),
    ]
    digest = xxhash.xxh3_64()
    for buffer in buffers:
        assert isinstance(buffer, bytes)
        digest.update(buffer)
    fields: dict[str, Any] = {
        "tag": 9,
        "attempt": 1,
        "actor": "a",
        "inc": 2**62,
        "stream": 1,
        "seq": seq,
        "floor": 0,
        "version_min": 3,
        "version_max": 4,
        "digest": digest.intdigest(),
        "ended": 2,
        "episodes": ((0, 0.1 + seq, 7),),
        "steps": T * G,
    }
    return Deliver(**{**fields, **changes}), buffers


def batch() -> Batch:
    return Batch(SPACES, length=T, envs=G, unrolls=UNROLLS, pinned=False)


def recorder(folder: Path) -> Recorder:
    return Recorder(folder, rank=0, world=1, run="[run]", spaces="s")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Three batches: trained, rejected, and one that was never decided; then an unroll alone."""
    own = recorder(tmp_path)
    for at in range(3):
        for seq in (2 * at, 2 * at + 1):
            own.accepted(*unroll(seq))
        own.full(UNROLLS)
        if at == 0:
            own.trained(1)
        if at == 1:
            own.rejected((0, 1), "non-finite gradients")
            own.refilled()
    own.accepted(*unroll(6))
    own.close()
    return recording.path_of(tmp_path, 0)


def kinds(path: Path) -> list[type[Entry]]:
    return [type(entry) for entry in recording.entries(path)]


def test_all_of_it_comes_out_in_order(path: Path) -> None:
    one = [Accepted, Accepted, Full]
    assert kinds(path) == [Opened, *one, Trained, *one, Rejected, Refilled, *one, Accepted, Closed]
    found, threads = list(recording.entries(path)), torch.get_num_threads()
    assert (
        found[0] == Opened(recording.SCHEMA, 0, 1, threads, "[run]", "s") == recording.opening(path)
    )
    assert (found[4], found[8]) == (Trained(1), Rejected((0, 1), "non-finite gradients"))


def test_batches_are_what_the_train_loop_had(path: Path) -> None:
    given, fed = batch(), RecordedSource(path, batch())
    for first in (0, 2):
        given.clear()
        for seq in (first, first + 1):
            assert given.place(*unroll(seq)) is None
        again = fed.next(timeout_s=0.0)
        assert again is not None
        for name, tensor in given.tensors.items():
            assert torch.equal(again.tensors[name], tensor), name
        for name in ("keys", "versions", "ends", "ended", "steps"):
            assert getattr(again, name) == getattr(given, name), name
        assert not fed.ended
        fed.trained(again, version=1)
    assert fed.next(timeout_s=0.0) is None
    assert (fed.ended, fed.closed) == (True, True)


@pytest.mark.parametrize("early", [True, False])
def test_a_batch_that_was_filled_up_again_is_what_it_was(tmp_path: Path, early: bool) -> None:
    """The feed and its recording, gone through side by side: an unroll of the first batch is
    rejected while the next one is begun, or is full already."""
    own = recorder(tmp_path)
    batches = [batch() for _ in range(3)]
    feed = UnrollReceiver(mock.Mock(), batches, layout="", recorder=own)
    feed.ends = mock.Mock()
    taken: list[list[int]] = []

    def trains() -> Batch:
        found = feed._ready.get_nowait()
        assert found is not None
        taken.append([seq for _, _, seq in found.keys])
        return found

    for seq in range(3 if early else 4):
        assert feed._accept(*unroll(seq)) is None
    first = trains()
    keys = [first.keys[0]]
    first.drop([0])
    feed._on_rejected(keys, (0,), Objection("step", "why"))
    feed._on_refill(first)
    for seq in range(3 if early else 4, 8):
        if feed._filling is not None:
            assert feed._accept(*unroll(seq)) is None
    version = 0
    while not feed._ready.empty():
        version += 1
        feed._on_trained(trains(), version)
    own.close()
    assert taken == (
        [[0, 1], [1, 3], [2, 4], [5, 6]] if early else [[0, 1], [2, 3], [1, 4], [5, 6]]
    )

    fed, again = RecordedSource(recording.path_of(tmp_path, 0), batch()), []
    while (found := fed.next(timeout_s=0.0)) is not None:
        again.append([seq for _, _, seq in found.keys])
        rows = found.tensors["reward"]
        for at, seq in enumerate(again[-1]):
            alone = batch()
            assert alone.place(*unroll(seq)) is None
            assert torch.equal(rows[:, at * G : (at + 1) * G], alone.tensors["reward"][:, :G])
        if len(again) == 1:
            fed.reject(found, [0], Objection("step", "why"))
            fed.refill(found)
        else:
            fed.trained(found, version=len(again) - 1)
    assert again == taken
    assert fed.closed


def test_frames_as_they_came_from_the_socket(tmp_path: Path) -> None:
    message, buffers = unroll(0)
    frames = [zmq.Frame(bytes(b)) for b in buffers]  # type: ignore[arg-type]
    own = recorder(tmp_path)
    own.accepted(message, frames)
    own.close()
    _, entry, _ = recording.entries(recording.path_of(tmp_path, 0))
    assert isinstance(entry, Accepted)
    assert [bytes(b) for b in entry.buffers] == buffers


def test_cut_short_anywhere_it_ends_before_the_cut(path: Path) -> None:
    whole, body = kinds(path), path.read_bytes()
    seen = set()
    for cut in range(0, len(body), 7):
        path.write_bytes(body[:cut])
        found = kinds(path)
        assert found == whole[: len(found)]
        assert found != whole
        seen.add(len(found))
    assert seen == set(range(len(whole)))


def test_a_changed_bit_is_the_end(path: Path) -> None:
    whole, body = kinds(path), bytearray(path.read_bytes())
    for at in range(0, len(body), 13):
        body[at] ^= 16
        path.write_bytes(body)
        found = kinds(path)
        assert found == whole[: len(found)] != whole
        body[at] ^= 16


def test_without_its_last_entry_it_is_incomplete(tmp_path: Path) -> None:
    own = recorder(tmp_path)
    for seq in (0, 1):
        own.accepted(*unroll(seq))
    own.full(UNROLLS)
    own.trained(1)
    own.flush()
    fed = RecordedSource(recording.path_of(tmp_path, 0), batch())
    assert fed.next(timeout_s=0.0) is not None
    assert fed.next(timeout_s=0.0) is None
    assert (fed.ended, fed.closed) == (True, False)
    own.close()


def test_the_receiver_tells_it_everything_as_it_happens() -> None:
    """The feed's own thread is not started: what it would call is called here."""
    own, first, second = mock.Mock(), batch(), batch()
    feed = UnrollReceiver(mock.Mock(), [first, second], layout="", recorder=own)
    feed.ends = mock.Mock()
    good = [unroll(seq) for seq in range(4)]
    bad = unroll(9, digest=1)
    assert [feed._accept(*each) for each in (good[0], good[1], good[2])] == [None] * 3
    assert "digest" in words(feed._accept(*bad))
    feed._on_trained(first, 5)
    feed._on_windows()
    feed._accept(*good[3])
    feed._on_rejected(second.keys[1:], (1,), Objection("step", "why"))
    feed._on_refill(second)
    accepted = [mock.call.accepted(*each) for each in good]
    assert own.mock_calls == [
        accepted[0],
        accepted[1],
        mock.call.full(UNROLLS),
        accepted[2],
        mock.call.trained(5),
        mock.call.flush(),
        accepted[3],
        mock.call.full(UNROLLS),
        mock.call.rejected((1,), "why"),
        mock.call.refilled(),
    ]
    feed._main()  # it has nothing to serve, and ends
    assert own.mock_calls[-1] == mock.call.close()


class TestRefusals:
    def test_no_recording(self, tmp_path: Path) -> None:
        with pytest.raises(RecordError, match="train with --record"):
            recording.opening(tmp_path / "rank0.log")

    def test_something_else(self, tmp_path: Path) -> None:
        path = tmp_path / "rank0.log"
        for content in (b"", b"x" * 100):
            path.write_bytes(content)
            with pytest.raises(RecordError, match="is no recording"):
                recording.opening(path)

    def test_another_schema(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(recording, "SCHEMA", 3)
        with pytest.raises(RecordError, match="has schema 2, this program reads 3"):
            recording.opening(path)

    def test_other_batches(self, path: Path) -> None:
        wide = Batch(SPACES, length=T, envs=G, unrolls=3, pinned=False)
        with pytest.raises(RecordError, match="a batch of 2 unrolls was recorded, and 2 of 3"):
            RecordedSource(path, wide).next(timeout_s=0.0)

    def test_other_shapes(self, path: Path) -> None:
        narrow = Batch(SPACES, length=T - 1, envs=G, unrolls=UNROLLS, pinned=False)
        with pytest.raises(RecordError, match=r"refused here: obs\.obs has 120 bytes"):
            RecordedSource(path, narrow).next(timeout_s=0.0)


class TestDisk:
    def test_a_full_one_ends_the_recording_with_one_line(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(recording, "_BUFFER_BYTES", 256)
        own = recorder(tmp_path)
        own.accepted(*unroll(0))
        # The kernel's own limit on a file's size fails as a full disk does: at some write.
        own._file.flush()
        size = recording.path_of(tmp_path, 0).stat().st_size
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 300, before[1]))
        try:
            for seq in range(1, 20):
                own.accepted(*unroll(seq))
                own.full(1)
                own.flush()
            own.close()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert [r.levelno for r in caplog.records] == [logging.ERROR]
        assert "is incomplete from here on" in caplog.text
        assert kinds(recording.path_of(tmp_path, 0)) == [Opened, Accepted]

    def test_a_folder_that_cannot_be_made(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / "record").write_text("in the way")
        own = recorder(tmp_path)
        own.accepted(*unroll(0))
        own.flush()
        own.close()
        assert len(caplog.records) == 1
        assert "this run is not recorded" in caplog.text

    def test_what_failed_in_the_buffer_is_not_tried_for_ever(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        class FullDisk(io.RawIOBase):
            def writable(self) -> bool:
                return True

            def write(self, _: Any) -> int:
                raise OSError(28, "No space left on device")

        own = recorder(tmp_path)
        own._file.close()
        own._file = io.BufferedWriter(FullDisk())
        own.full(1)
        own.flush()
        own.flush()
        own.close()
        assert len(caplog.records) == 1
