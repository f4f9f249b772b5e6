"""Weights in pieces: a version is whole and right, or it is not there."""

import random
from collections import deque

import msgspec
import pytest

from broker import blobs
from broker.blobs import Blob, Fetch
from broker.wire import Announce, Get


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobs, "CHUNK_BYTES", 64)


def body(version: int, size: int = 1000) -> bytes:
    return random.Random(version).randbytes(size)


def blob(version: int, size: int = 1000) -> Blob:
    return Blob.of(version, "layout", body(version, size))


def pull(fetch: Fetch, source: Blob, gets: list[Get]) -> Blob | None:
    """Answer every request until there is none; returns the newest whole blob."""
    waiting, newest = deque(gets), None
    while waiting:
        for chunk, part in source.chunks(waiting.popleft()):
            whole, more = fetch.on_chunk(chunk, part)
            newest = whole or newest
            waiting.extend(more)
    return newest


@pytest.mark.parametrize("size", [1, 63, 64, 65, 64 * 8, 64 * 8 + 1, 5000])
def test_a_version_arrives_whole(size: int) -> None:
    source, fetch = blob(3, size), Fetch()
    assert blobs.count(source.announce) == -(-size // 64)
    whole = pull(fetch, source, fetch.on_announce(source.announce))
    assert whole is not None and bytes(whole.body) == body(3, size)
    assert (fetch.version, fetch.busy, fetch.refused) == (3, False, 0)
    assert fetch.on_announce(source.announce) == []


def test_small_weights_need_no_second_round_trip() -> None:
    source, fetch = blob(1, 50), Fetch()
    fetch.on_announce(source.announce)
    whole, more = fetch.on_chunk(*source.first())
    assert whole is not None and bytes(whole.body) == body(1, 50) and more == []


def test_a_window_at_a_time() -> None:
    source, fetch = blob(1, 64 * 20), Fetch()
    (get,) = fetch.on_announce(source.announce)
    assert (get.lo, get.hi) == (0, blobs.WINDOW)
    *early, last = source.chunks(get)
    assert all(fetch.on_chunk(*chunk) == (None, []) for chunk in early)
    assert fetch.on_chunk(*last) == (None, [Get(1, 8, 16)])


def test_lost_and_doubled_chunks() -> None:
    rng = random.Random(5)
    for seed in range(200):
        source, fetch = blob(seed, 64 * rng.randint(1, 30)), Fetch()
        waiting, whole, beats = deque(fetch.on_announce(source.announce)), None, 0
        while whole is None:
            if not waiting:
                waiting.extend(fetch.again())
                beats += 1
                assert beats < 200
                continue
            for chunk, part in source.chunks(waiting.popleft()):
                for _ in range(rng.choice((0, 1, 1, 2))):
                    done, more = fetch.on_chunk(chunk, part)
                    whole = done or whole
                    waiting.extend(more)
        assert bytes(whole.body) == bytes(source.body)


def test_a_thousand_flipped_bits() -> None:
    rng = random.Random(7)
    accepted = 0
    for number in range(1000):
        source, fetch = blob(number, 300), Fetch()
        (get,) = fetch.on_announce(source.announce)
        bad = rng.randrange(5)
        for chunk, part in source.chunks(get):
            wounded = bytearray(part)
            if chunk.index == bad:
                wounded[rng.randrange(len(part))] ^= 1 << rng.randrange(8)
            whole, more = fetch.on_chunk(chunk, wounded)
            accepted += whole is not None
            if chunk.index == bad:
                assert more == [Get(number, bad, bad + 1)]
        assert fetch.refused == 1
        # The right one mends it.
        assert pull(fetch, source, more if bad == 4 else [Get(number, bad, bad + 1)]) is not None
    assert accepted == 0


def test_a_wrong_digest_of_right_chunks() -> None:
    source, fetch = blob(1), Fetch()
    lie = msgspec.structs.replace(source.announce, digest="0" * 32)
    assert pull(fetch, source, fetch.on_announce(lie)) is None
    assert (fetch.version, fetch.refused, fetch.busy) == (-1, 1, False)
    assert pull(fetch, source, fetch.on_announce(source.announce)) is not None


def test_chunks_nobody_asked_for() -> None:
    source, fetch = blob(2), Fetch()
    chunk, part = source.first()
    assert fetch.on_chunk(chunk, part) == (None, [])  # nothing announced
    fetch.on_announce(source.announce)
    old = blob(1)
    assert fetch.on_chunk(*old.first()) == (None, [])  # another version
    for index in (-1, 16, 2**40):
        assert fetch.on_chunk(msgspec.structs.replace(chunk, index=index), part) == (None, [])
    assert source.chunks(Get(2, -5, 1))[0][0].index == 0
    assert source.chunks(Get(2, 16, 99)) == []


@pytest.mark.parametrize(
    "forged",
    [
        {"size": 0},
        {"size": -5},
        {"size": blobs.MAX_BYTES + 1},
        {"size": 2000},  # hashes for fewer chunks
        {"chunk": 0},
        {"chunk": -64},
        {"chunk": 1 << 40},
        {"hashes": b""},
        {"hashes": b"x" * 129},
    ],
)
def test_forged_sizes(forged: dict[str, int | bytes]) -> None:
    fetch = Fetch()
    assert fetch.on_announce(msgspec.structs.replace(blob(1).announce, **forged)) == []
    assert not fetch.busy


def test_weights_too_large_to_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobs, "MAX_BYTES", 999)
    with pytest.raises(ValueError, match="at most 999"):
        blob(1)


def begun(fetch: Fetch, source: Blob, chunks: int) -> None:
    (get,) = fetch.on_announce(source.announce)
    for chunk in source.chunks(get)[:chunks]:
        fetch.on_chunk(*chunk)


def test_a_newer_version_early_in_a_transfer_takes_over() -> None:
    fetch = Fetch()
    begun(fetch, blob(1, 64 * 8), 3)
    whole = pull(fetch, blob(2), fetch.on_announce(blob(2).announce))
    assert whole is not None and bytes(whole.body) == body(2)


def test_a_newer_version_late_in_a_transfer_waits_for_its_end() -> None:
    fetch, first = Fetch(), blob(1, 64 * 8)
    begun(fetch, first, 7)
    assert fetch.on_announce(blob(3).announce) == []
    assert fetch.on_announce(blob(2).announce) == []  # late: the newest stays next
    whole, more = fetch.on_chunk(*first.chunks(Get(1, 7, 8))[0])
    assert whole is not None and bytes(whole.body) == body(1, 64 * 8)
    newest = pull(fetch, blob(3), more)
    assert newest is not None and bytes(newest.body) == body(3)


def test_a_transfer_whose_source_moved_on_gives_way() -> None:
    fetch = Fetch()
    begun(fetch, blob(1, 64 * 8), 7)
    fetch.on_announce(blob(2).announce)
    assert fetch.again() == []  # it moved since the last beat
    whole = pull(fetch, blob(2), fetch.again())
    assert whole is not None and fetch.version == 2


def test_versions_only_rise() -> None:
    rng, fetch, seen = random.Random(3), Fetch(), [-1]
    for step in range(2000):
        source = blob(step // 40 + rng.randrange(9), 64 * rng.randint(1, 12))
        for get in (fetch.on_announce(source.announce) + fetch.again())[: rng.randint(0, 2)]:
            for chunk in source.chunks(get)[: rng.randint(0, 9)]:
                fetch.on_chunk(*chunk)
        seen.append(fetch.version)
    assert seen == sorted(seen) and seen[-1] > 5


def test_another_broker_may_begin_below() -> None:
    fetch = Fetch()
    pull(fetch, blob(9), fetch.on_announce(blob(9).announce))
    fetch.reset(9)
    assert fetch.on_announce(blob(8).announce) == []
    fetch.reset(4)
    assert pull(fetch, blob(5), fetch.on_announce(blob(5).announce)) is not None


def test_of_several_announcements_only_the_newest() -> None:
    announces: list[Announce] = [blob(n).announce for n in (2, 5, 3)]
    assert blobs.newest(announces) == announces[1]
    assert blobs.newest([]) is None
