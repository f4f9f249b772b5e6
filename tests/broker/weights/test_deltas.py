"""Weights as what changed: the same bytes in the end, and whole chunks wherever that fails."""

import contextlib
import random
import time
from collections import deque
from collections.abc import Sequence
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.protocol.messages import Chunk, Delta, Get, GetDelta, Payload, decode
from headrace.broker.transport.link import Link
from headrace.broker.weights import blobs, deltas, kept_versions
from headrace.broker.weights.blobs import Blob
from headrace.broker.weights.fetch import WeightFetch
from headrace.broker.weights.kept_versions import KeptVersions
from headrace.broker.weights.subscriber import Subscriber

MOVED = np.float32(1e-3)  # of a weight, from version to version


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobs, "CHUNK_BYTES", 256)


def blob(version: int, numbers: int = 500) -> Blob:
    """Weights that move a little from version to version."""
    first = np.random.default_rng(0).normal(size=numbers).astype(np.float32)
    return Blob.of(version, "layout", (first + np.float32(version) * MOVED * first).tobytes())


def bring(fetch: WeightFetch, kept: KeptVersions, gets: list[Get]) -> tuple[Blob | None, int, int]:
    """Answers every request as a broker does; returns the blob, and how many chunks came whole and
    as changes."""
    waiting, found, whole, changed = deque(gets), None, 0, 0
    while waiting:
        get = waiting.popleft()
        for chunk, part in kept.chunks(Get(get.version, get.lo, get.hi)):
            changes = kept.changes(chunk, get.base) if isinstance(get, GetDelta) else None
            whole, changed = whole + (changes is None), changed + (changes is not None)
            blob, more = fetch.on_chunk(*(changes or (chunk, part)))
            found = blob or found
            waiting.extend(more)
    return found, whole, changed


def holding(*versions: Blob) -> KeptVersions:
    kept = KeptVersions()
    for one in versions:
        kept.add(one)
    return kept


def having(version: int) -> WeightFetch:
    """A fetch on a slow line, with this version."""
    fetch, source = WeightFetch(), blob(version)
    fetch.by_changes = True
    bring(fetch, holding(source), fetch.on_announce(source.announce))
    assert fetch.version == version
    return fetch


@given(st.binary(min_size=1, max_size=600), st.randoms(use_true_random=False))
def test_what_was_packed_comes_back(chunk: bytes, dice: random.Random) -> None:
    base = dice.randbytes(len(chunk))
    assert deltas.unpack(deltas.pack(chunk, base), base) == chunk


@given(st.binary(max_size=200), st.binary(min_size=1, max_size=200))
def test_any_bytes_unpack_to_a_chunk_of_that_size_or_are_refused(
    packed: bytes, base: bytes
) -> None:
    with contextlib.suppress(deltas.NotPacked):
        assert len(deltas.unpack(packed, base)) == len(base)


def test_small_steps_are_fewer_bytes() -> None:
    old, new = (blob(version, 32_768).body for version in (1, 2))
    assert len(deltas.pack(new, old)) < len(new) * 0.7
    assert len(deltas.pack(new, new)) < len(new) / 200


def test_on_a_slow_line_the_next_version_comes_as_changes() -> None:
    fetch, old, new = having(1), blob(1), blob(2)
    gets = fetch.on_announce(new.announce)
    assert gets == [GetDelta(2, 0, 8, 1)]
    whole_blob, whole, changed = bring(fetch, holding(old, new), gets)
    assert whole_blob is not None and whole_blob.body == new.body
    assert (whole, changed, fetch.refused) == (0, 8, 0)


def test_on_a_quick_line_it_comes_whole() -> None:
    fetch, new = having(1), blob(2)
    fetch.by_changes = False
    assert bring(fetch, holding(blob(1), new), fetch.on_announce(new.announce))[0] is not None
    assert fetch.on_announce(blob(3).announce) == [Get(3, 0, 8)]


def test_a_broker_that_has_the_old_version_no_more_sends_whole_chunks() -> None:
    fetch, new = having(1), blob(2)
    found, whole, changed = bring(fetch, holding(new), fetch.on_announce(new.announce))
    assert found is not None and (whole, changed) == (8, 0)


def test_changes_of_other_weights_of_that_number_are_noticed_and_come_whole() -> None:
    """The learner before, and the one that came back, both had a version 1."""
    fetch, new = having(1), blob(2)
    other = Blob.of(1, "layout", blob(7).body)
    found, whole, changed = bring(fetch, holding(other, new), fetch.on_announce(new.announce))
    assert found is not None and found.body == new.body
    assert (whole, changed, fetch.refused) == (8, 8, 8)


@pytest.mark.parametrize("packed", [b"", b"\xff" * 20, deltas.pack(b"x" * 8, b"y" * 8)])
def test_what_does_not_unpack_is_asked_for_whole(packed: bytes) -> None:
    fetch, new = having(1), blob(2)
    fetch.on_announce(new.announce)
    assert fetch.on_chunk(Delta(2, 3, 1), packed) == (None, [Get(2, 3, 4)])
    assert fetch.refused == 1


def test_changes_that_nobody_can_apply() -> None:
    fetch, new = WeightFetch(), blob(2)
    fetch.on_announce(new.announce)
    assert fetch.on_chunk(Delta(2, 0, 1), b"x") == (None, [Get(2, 0, 1)])


def test_weights_of_another_size_come_whole() -> None:
    fetch = having(1)
    assert fetch.on_announce(blob(2, 600).announce) == [Get(2, 0, 10)]
    kept = holding(blob(1), blob(2, 600))
    assert kept.changes(Chunk(2, 0), 1) is None


def test_another_broker_is_asked_for_whole_chunks() -> None:
    fetch = having(1)
    fetch.reset(0)
    assert fetch.on_announce(blob(2).announce) == [Get(2, 0, 8)]


def test_changes_as_large_as_the_chunk_are_not_sent() -> None:
    old, new = (Blob.of(n, "layout", random.Random(n).randbytes(2000)) for n in (1, 2))
    assert holding(old, new).changes(Chunk(2, 0), 1) is None


def test_small_versions_behind_each_other_are_changes_of_what_was_here_when_they_were_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a long line some are on their way while others come in."""
    monkeypatch.setattr(blobs, "CHUNK_BYTES", 1 << 17)
    versions = [blob(n) for n in range(9)]
    kept, fetch = holding(*versions), having(0)
    gets = [get for one in versions[1:5] for get in fetch.on_announce(one.announce)]
    assert {get.base for get in gets if isinstance(get, GetDelta)} == {0} and len(gets) == 4
    on_the_way = deque(gets)
    for one in versions[5:]:
        bring(fetch, kept, [on_the_way.popleft()])
        on_the_way.extend(fetch.on_announce(one.announce))
    assert [get.base for get in on_the_way if isinstance(get, GetDelta)] == [1, 2, 3, 4]
    for get in list(on_the_way):
        found, whole, changed = bring(fetch, kept, [get])
        assert found is not None and (whole, changed) == (0, 1)
    assert (fetch.version, fetch.refused) == (8, 0)


def test_of_large_versions_only_the_last_is_kept_for_changes() -> None:
    fetch = having(1)
    for version in range(2, 6):
        new = blob(version)
        bring(fetch, holding(blob(version - 1), new), fetch.on_announce(new.announce))
    assert list(fetch._bases) == [5]


def test_a_chunk_is_packed_once_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = holding(blob(1), blob(2))
    first = kept.changes(Chunk(2, 0), 1)
    monkeypatch.setattr(deltas, "pack", None)
    assert kept.changes(Chunk(2, 0), 1) == first is not None


def test_packed_chunks_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deltas, "_CACHED_BYTES", 1000)
    packed = deltas.PackedChunks()
    for index in range(50):
        packed.get(("a", "b", index), lambda: b"x" * 100)
        assert packed.nbytes <= 1000
    assert packed.get(("a", "b", 49), lambda: b"") == b"x" * 100
    assert packed.get(("a", "b", 0), lambda: b"y") == b"y"


def test_the_bases_of_changes_are_kept_and_the_others_go_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept_versions, "_KEPT_BYTES", 0)
    monkeypatch.setattr(kept_versions, "_KEPT_BASES_BYTES", 5 * 2000)
    kept = KeptVersions()
    for version in range(10):
        kept.add(blob(version), fetched={3, 8}, bases={2, 5})
    held = [n for n in range(10) if kept.chunks(Get(n, 0, 1))]
    assert held == [2, 3, 5, 8, 9]


class Line:
    """Stands in for a link, and for the clock."""

    endpoint = ""

    def __init__(self) -> None:
        self.now = 0.0
        self.asked: list[Get] = []

    def send(self, frames: Sequence[Payload]) -> None:
        message, _ = decode([bytes(cast(bytes, frame)) for frame in frames])
        assert isinstance(message, Get)
        self.asked.append(message)


@pytest.mark.parametrize(("took_s", "changes"), [(0.05, False), (0.2, True)])
def test_a_line_is_slow_when_a_version_takes_a_tenth_of_a_second(
    took_s: float, changes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = Line()
    monkeypatch.setattr(time, "monotonic", lambda: line.now)
    reader, kept = Subscriber(cast(Link, line)), KeptVersions()

    def comes(version: int, seconds: float) -> type[Get]:
        """The kind of the Get for it."""
        kept.add(blob(version))
        reader.handle(blob(version).announce, ())
        (get,), line.asked = line.asked, []
        line.now += seconds
        for chunk, part in kept.chunks(Get(version, get.lo, get.hi)):
            changed = kept.changes(chunk, get.base) if isinstance(get, GetDelta) else None
            message, body = changed or (chunk, part)
            reader.handle(message, [body])
        assert reader.take() is not None
        return type(get)

    asked = [comes(version, took_s) for version in range(1, 5)]
    # The first one that was known to be slow is the first that is kept.
    assert asked == ([Get, Get, GetDelta, GetDelta] if changes else [Get] * 4)
    # Changes that come sooner than that are no quick line: the version would take as long.
    if changes:
        assert comes(5, took_s / 2.1) is GetDelta and comes(6, took_s) is GetDelta
        assert comes(7, 0.001) is GetDelta and comes(8, 0.001) is Get
