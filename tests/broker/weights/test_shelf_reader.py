"""Weights from the machine's shelf when they come there, from the broker when they do not."""

import fcntl
import os
import random
import signal
from pathlib import Path

import pytest

from headrace.broker.weights import shelf_reader as borrower_module
from headrace.broker.weights.blobs import Blob
from headrace.broker.weights.fetch import WeightFetch
from headrace.broker.weights.shelf_reader import ShelfReader
from headrace.broker.weights.weight_shelf import SegmentReader, WeightShelf


def blob(version: int, content: int | None = None) -> Blob:
    body = random.Random(version if content is None else content).randbytes(5000)
    return Blob.of(version, "layout", body)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "weights"


@pytest.fixture
def shelf(path: Path, monkeypatch: pytest.MonkeyPatch) -> WeightShelf:
    """Attended from the start, as a relay's is; it has not moved for ages."""
    monkeypatch.setattr("headrace.broker.weights.weight_shelf.time.monotonic_ns", lambda: 0)
    made = WeightShelf(path)
    made.reserve(0)
    return made


def test_what_was_announced_is_taken_when_it_lies_there(shelf: WeightShelf) -> None:
    reader = ShelfReader(shelf.path)
    assert reader.announced(blob(3).announce, 0.0), "wait"
    assert reader.awaits.is_set()
    assert reader.poll(0.1) == (None, None)
    shelf.put(blob(3))
    found, missing = reader.poll(0.2)
    assert found is not None
    assert bytes(found.body) == bytes(blob(3).body)
    assert missing is None
    assert not reader.awaits.is_set(), "nothing to look for"


def test_a_version_before_the_newest_is_taken_too(shelf: WeightShelf) -> None:
    """Where versions come faster than the line carries them the shelf is always behind."""
    reader = ShelfReader(shelf.path)
    for version in (3, 4, 5):
        reader.announced(blob(version).announce, 0.0)
    shelf.put(blob(4))
    found, _ = reader.poll(0.1)
    assert found is not None
    assert found.announce.version == 4
    assert reader.awaits.is_set(), "5 is still to come"


def test_what_nobody_announced_is_left_there(shelf: WeightShelf) -> None:
    """A broker that came back from older state calls other weights by names that were used."""
    reader = ShelfReader(shelf.path)
    shelf.put(blob(50))
    reader.announced(blob(3).announce, 0.0)
    assert reader.poll(0.1) == (None, None)
    shelf.put(blob(3, content=99))
    assert reader.poll(0.2) == (None, None), "the right name, other weights"


def test_another_broker_starts_with_nothing_announced(shelf: WeightShelf) -> None:
    reader = ShelfReader(shelf.path)
    reader.announced(blob(50).announce, 0.0)
    reader.reset()
    assert not reader.awaits.is_set()
    shelf.put(blob(50))
    assert reader.poll(0.1) == (None, None)


def test_where_there_is_no_relay_the_broker_is_asked_soon_and_then_at_once(path: Path) -> None:
    reader = ShelfReader(path)
    assert reader.announced(blob(1).announce, 10.0), "it may be about to begin"
    assert reader.poll(10.2) == (None, None)
    assert reader.poll(10.4) == (None, blob(1).announce)
    assert reader.poll(10.5) == (None, None), "asked once"
    assert not reader.announced(blob(2).announce, 11.0)


def test_versions_that_keep_coming_do_not_put_it_off(path: Path) -> None:
    reader = ShelfReader(path)
    for tenth in range(3):
        reader.announced(blob(tenth).announce, tenth / 10)
        assert reader.poll(tenth / 10) == (None, None)
    reader.announced(blob(3).announce, 0.3)
    assert reader.poll(0.31) == (None, blob(3).announce)
    assert not reader.announced(blob(4).announce, 0.4)


def test_a_slow_line_is_waited_for_as_long_as_something_moves(
    shelf: WeightShelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = ShelfReader(shelf.path)
    reader.announced(blob(1).announce, 100.0)
    assert reader.poll(104.0) == (None, None)
    monkeypatch.setattr(
        "headrace.broker.weights.weight_shelf.time.monotonic_ns", lambda: 104_000_000_000
    )
    shelf.show_progress()
    assert reader.poll(108.0) == (None, None)
    assert reader.poll(110.0) == (None, blob(1).announce), "stuck for five seconds"


def test_a_relay_that_comes_back_takes_over_again(
    shelf: WeightShelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = ShelfReader(shelf.path)
    shelf.close()
    reader.announced(blob(1).announce, 10.0)
    assert reader.poll(11.0)[1] is not None
    reader.received(1)
    monkeypatch.setattr(
        "headrace.broker.weights.weight_shelf.time.monotonic_ns", lambda: 12_000_000_000
    )
    again = WeightShelf(shelf.path)
    again.reserve(0)
    assert reader.announced(blob(2).announce, 13.0), "it is waited for"
    again.put(blob(2))
    found, _ = reader.poll(13.1)
    assert found is not None


def test_of_what_came_from_the_broker_nothing_is_awaited(shelf: WeightShelf) -> None:
    reader = ShelfReader(shelf.path)
    reader.announced(blob(1).announce, 0.0)
    reader.announced(blob(2).announce, 0.0)
    reader.received(2)
    assert not reader.awaits.is_set()


def test_what_is_awaited_is_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(borrower_module, "_MOST_AWAITED", 3)
    reader = ShelfReader(path)
    for version in range(10):
        reader.announced(blob(version).announce, 0.0)
    assert reader.poll(1.0)[1] == blob(9).announce
    assert len(reader._awaited) == 3


@pytest.mark.processes
def test_the_kernel_says_that_the_writer_was_killed(path: Path) -> None:
    told, tell = os.pipe()
    writer = os.fork()
    if not writer:
        try:
            WeightShelf(path).put(blob(1))
            os.write(tell, b"!")
            signal.pause()
        finally:
            os._exit(0)
    try:
        os.read(told, 1)
        reader = SegmentReader(path)
        seen = reader.look()
        assert seen is not None
        assert (seen.version, seen.attended) == (1, True)
        assert reader.look() == seen, "a look leaves the lock alone"
    finally:
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
    seen = reader.look()
    assert seen is not None
    assert not seen.attended
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nor does a reader keep it


def test_a_fetch_gives_up_what_came_otherwise() -> None:
    fetch = WeightFetch()
    assert fetch.on_announce(blob(1).announce)
    assert fetch.skip_to(1) == []
    assert not fetch.busy
    assert fetch.on_announce(blob(1).announce) == [], "it is here"
    assert fetch.on_announce(blob(2).announce)
    fetch.skip_to(1)
    assert fetch.busy, "2 is newer"
