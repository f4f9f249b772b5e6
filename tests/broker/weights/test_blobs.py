"""Weights in pieces: a version is whole and right, or it is not there."""

import random
from collections import deque

import msgspec
import pytest
import xxhash

from headrace.broker.protocol.fields import MAX_VERSION
from headrace.broker.protocol.messages import Announce, Buffer, Chunk, Get
from headrace.broker.weights import blobs, kept_versions
from headrace.broker.weights.blobs import Blob
from headrace.broker.weights.fetch import WeightFetch
from headrace.broker.weights.kept_versions import KeptVersions


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobs, "CHUNK_BYTES", 64)


def body(version: int, size: int = 1000) -> bytes:
    return random.Random(version).randbytes(size)


def blob(version: int, size: int = 1000) -> Blob:
    return Blob.of(version, "layout", body(version, size))


def pull(fetch: WeightFetch, source: Blob, gets: list[Get]) -> Blob | None:
    """Answer every request until there is none; returns the newest whole blob."""
    waiting, newest, turns = deque(gets), None, 0
    while waiting:
        turns += 1
        assert turns < 10_000, "asked for again and again, as fast as it comes"
        for chunk, part in source.chunks(waiting.popleft()):
            whole, more = fetch.on_chunk(chunk, part)
            newest = whole or newest
            waiting.extend(more)
    return newest


@pytest.mark.parametrize("size", [1, 63, 64, 65, 64 * 8, 64 * 8 + 1, 5000])
def test_a_version_arrives_whole(size: int) -> None:
    source, fetch = blob(3, size), WeightFetch()
    assert blobs.count(source.announce) == -(-size // 64)
    whole = pull(fetch, source, fetch.on_announce(source.announce))
    assert whole is not None and bytes(whole.body) == body(3, size)
    assert (fetch.version, fetch.busy, fetch.refused) == (3, False, 0)
    assert fetch.on_announce(source.announce) == []


def test_small_weights_need_no_second_round_trip() -> None:
    source, fetch = blob(1, 50), WeightFetch()
    fetch.on_announce(source.announce)
    whole, more = fetch.on_chunk(*source.first())
    assert whole is not None and bytes(whole.body) == body(1, 50) and more == []


def test_a_window_at_a_time() -> None:
    source, fetch = blob(1, 64 * (2 * blobs.WINDOW + 4)), WeightFetch()
    (get,) = fetch.on_announce(source.announce)
    assert (get.lo, get.hi) == (0, blobs.WINDOW)
    *early, last = source.chunks(get)
    assert all(fetch.on_chunk(*chunk) == (None, []) for chunk in early)
    assert fetch.on_chunk(*last) == (None, [Get(1, blobs.WINDOW, 2 * blobs.WINDOW)])


def test_lost_and_doubled_chunks() -> None:
    rng = random.Random(5)
    for seed in range(200):
        source, fetch = blob(seed, 64 * rng.randint(1, 30)), WeightFetch()
        waiting, whole, beats = deque(fetch.on_announce(source.announce)), None, 0
        while whole is None:
            if not waiting:
                waiting.extend(fetch.ask_missing())
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
        source, fetch = blob(number, 300), WeightFetch()
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
    source, fetch = blob(1), WeightFetch()
    lie = msgspec.structs.replace(source.announce, digest="0" * 32)
    assert pull(fetch, source, fetch.on_announce(lie)) is None
    assert (fetch.version, fetch.refused, fetch.busy) == (-1, 1, False)
    assert pull(fetch, source, fetch.on_announce(source.announce)) is not None


def test_a_holder_whose_copy_is_wrong_is_asked_once_a_beat() -> None:
    """Not as fast as the wire carries it."""
    source, fetch = blob(4, 640), WeightFetch()
    fetch.on_announce(source.announce)
    right = source.chunks(Get(4, 0, 10))
    wrong = bytes(64)
    for chunk, part in right[1:]:
        fetch.on_chunk(chunk, part)
    asked = sum(len(fetch.on_chunk(right[0][0], wrong)[1]) for _ in range(50))
    assert (asked, fetch.refused) == (1, 50)
    for _ in range(20):
        asked += len(fetch.ask_missing())
        assert sum(len(fetch.on_chunk(right[0][0], wrong)[1]) for _ in range(50)) <= 1
    assert fetch.version == -1 and asked == 4  # after 2 beats, 4 and 8 more
    whole = pull(fetch, source, [Get(4, 0, 1)])
    assert whole is not None and bytes(whole.body) == body(4, 640)


def test_a_holder_cuts_as_it_was_announced() -> None:
    """Else every piece that it passes on has another hash than it says."""
    wide = Blob.of(1, "layout", body(1))
    parts = [body(1)[at : at + 100] for at in range(0, 1000, 100)]
    hashes = b"".join(xxhash.xxh3_64_digest(part) for part in parts)
    announce = msgspec.structs.replace(wide.announce, chunk=100, hashes=hashes)
    first, second = WeightFetch(), WeightFetch()
    whole = pull(first, Blob(announce, tuple(parts)), first.on_announce(announce))
    assert whole is not None
    again = pull(second, whole, second.on_announce(whole.announce))
    assert again is not None and bytes(again.body) == body(1)


@pytest.mark.parametrize("chunks", range(1, 8))
def test_a_publisher_killed_in_the_middle(chunks: int) -> None:
    """The learner that takes its place trained otherwise and calls that by the same version."""
    fetch, first = WeightFetch(), blob(3, 64 * 8)
    begun(fetch, first, chunks)
    other = Blob.of(3, "layout", body(99, 64 * 8))
    gets = fetch.on_announce(other.announce)
    for _ in range(6):
        gets = gets + fetch.ask_missing()
    whole = pull(fetch, other, gets)
    assert whole is not None and bytes(whole.body) == body(99, 64 * 8)
    assert (fetch.version, fetch.busy, fetch.refused) == (3, False, 0)


def test_of_two_contents_of_one_version_the_first_that_is_whole_stays() -> None:
    fetch, first, other = WeightFetch(), blob(3, 64 * 8), Blob.of(3, "layout", body(99, 64 * 8))
    begun(fetch, first, 7)
    assert fetch.on_announce(other.announce) == []  # more than half is here
    whole, gets = fetch.on_chunk(*first.chunks(Get(3, 7, 8))[0])
    assert whole is not None and bytes(whole.body) == body(3, 64 * 8) and gets == []
    assert not fetch.busy and fetch.on_announce(other.announce) == []


def test_a_thousand_publishers_killed_in_the_middle() -> None:
    """Bits flip on the way too: what is taken is what some publisher had, and versions rise."""
    rng, fetch, loads = random.Random(13), WeightFetch(), 0
    for number in range(1000):
        source = blob(number // 2 + number % 2 * 500_000, 64 * rng.randint(1, 12))
        source = Blob.of(number // 2, "layout", bytes(source.body))
        waiting = deque(
            fetch.on_announce(source.announce) + fetch.ask_missing() + fetch.ask_missing()
        )
        for _ in range(rng.randrange(40)):
            if not waiting:
                waiting.extend(fetch.ask_missing())
            for chunk, part in source.chunks(waiting.popleft()) if waiting else ():
                sent = bytearray(part)
                if rng.random() < 0.2:
                    sent[rng.randrange(len(sent))] ^= 1 << rng.randrange(8)
                before = fetch.version
                whole, gets = fetch.on_chunk(chunk, sent)
                waiting.extend(gets)
                if whole is not None:
                    assert bytes(whole.body) == bytes(source.body)
                    assert before < whole.announce.version == fetch.version
                    loads += 1
    assert loads > 100 and fetch.refused > 100


def test_chunks_nobody_asked_for() -> None:
    source, fetch = blob(2), WeightFetch()
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
        {"version": -1},
        {"version": MAX_VERSION + 1},
        {"version": 2**64 - 1},
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
    fetch = WeightFetch()
    assert fetch.on_announce(msgspec.structs.replace(blob(1).announce, **forged)) == []
    assert not fetch.busy


def test_weights_too_large_to_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobs, "MAX_BYTES", 999)
    with pytest.raises(ValueError, match="at most 999"):
        blob(1)


def begun(fetch: WeightFetch, source: Blob, chunks: int) -> None:
    (get,) = fetch.on_announce(source.announce)
    for chunk in source.chunks(get)[:chunks]:
        fetch.on_chunk(*chunk)


def test_a_newer_version_waits_for_the_end_of_a_transfer() -> None:
    """However little of it is here: what was asked for is on its way."""
    fetch, first = WeightFetch(), blob(1, 64 * 8)
    begun(fetch, first, 0)
    assert fetch.on_announce(blob(2).announce) == []
    whole = pull(fetch, first, [Get(1, 0, 8)])
    assert whole is not None and bytes(whole.body) == body(1, 64 * 8)
    assert fetch.busy


def test_versions_faster_than_the_line_carries_one() -> None:
    """A version takes 40 beats there, and each beat brings a newer one. Nothing comes twice for
    long, and there are always weights that are whole now and then."""
    fetch, pipe, kept = WeightFetch(), deque[tuple[Chunk, Buffer]](), KeptVersions()
    loads = carried = 0
    for beat in range(4000):
        source = blob(beat, 64 * 4)
        kept.add(source)
        gets = fetch.on_announce(source.announce) + fetch.ask_missing()
        if beat % 10 == 9 and pipe:
            carried += 1
            whole, more = fetch.on_chunk(*pipe.popleft())
            loads += whole is not None
            gets += more
        for get in gets:
            pipe += kept.chunks(get)
    assert fetch.refused == 0 and len(pipe) <= 12
    assert loads >= 0.8 * carried / 4


def test_a_holder_keeps_the_newest_and_what_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_versions, "_KEPT_BYTES", 2500)
    kept = KeptVersions()
    for version in range(5):
        kept.add(blob(version))
    assert [bool(kept.chunks(Get(version, 0, 1))) for version in range(6)] == [
        False,
        False,
        False,
        True,
        True,
        False,
    ]
    kept.add(blob(5, 9000))
    assert [bool(kept.chunks(Get(version, 0, 1))) for version in range(6)] == [False] * 5 + [True]


def test_a_newer_version_late_in_a_transfer_waits_for_its_end() -> None:
    fetch, first = WeightFetch(), blob(1, 64 * 8)
    begun(fetch, first, 7)
    assert fetch.on_announce(blob(3).announce) == []
    assert fetch.on_announce(blob(2).announce) == []  # late: the newest stays next
    whole, more = fetch.on_chunk(*first.chunks(Get(1, 7, 8))[0])
    assert whole is not None and bytes(whole.body) == body(1, 64 * 8)
    newest = pull(fetch, blob(3), more)
    assert newest is not None and bytes(newest.body) == body(3)


def test_a_transfer_whose_source_moved_on_gives_way() -> None:
    fetch = WeightFetch()
    begun(fetch, blob(1, 64 * 8), 7)
    fetch.on_announce(blob(2).announce)
    beats = [fetch.ask_missing() for _ in range(3)]
    assert beats[:2] == [[]] * 2  # it moved since the last beat, and then has patience
    whole = pull(fetch, blob(2), beats[2])
    assert whole is not None and fetch.version == 2


class LongLine:
    """A holder, a fetcher, and `ticks` from one to the other; the fetcher beats every 100."""

    def __init__(self, ticks: int, *, size: int, every: int) -> None:
        self.fetch, self.kept = WeightFetch(), KeptVersions()
        self.loads: list[tuple[int, int]] = []  # (tick, ticks since that version was made)
        self._ticks, self._size, self._every = ticks, size, every
        self._there: deque[tuple[int, Get]] = deque()
        self._back: deque[tuple[int, Announce | tuple[Chunk, Buffer]]] = deque()

    def run(self, ticks: int) -> None:
        for now in range(ticks):
            if now % self._every == 0:
                source = blob(now // self._every, self._size)
                self.kept.add(source)
                self._back.append((now + self._ticks, source.announce))
            while self._there and self._there[0][0] <= now:
                self._answer(now, self._there.popleft()[1])
            gets = self.fetch.ask_missing() if now % 100 == 0 else []
            while self._back and self._back[0][0] <= now:
                gets += self._hear(now, self._back.popleft()[1])
            self._there += [(now + self._ticks, get) for get in gets]

    def _answer(self, now: int, get: Get) -> None:
        newer = self.kept.newer_instead(get)
        if newer is not None:
            self._back.append((now + self._ticks, newer))
            get = Get(newer.version, get.lo, get.hi)
        self._back += [(now + self._ticks, chunk) for chunk in self.kept.chunks(get)]

    def _hear(self, now: int, what: Announce | tuple[Chunk, Buffer]) -> list[Get]:
        if isinstance(what, Announce):
            return self.fetch.on_announce(what)
        whole, gets = self.fetch.on_chunk(*what)
        if whole is not None:
            self.loads.append((now, now - whole.announce.version * self._every))
        return gets


def test_on_a_long_line_small_versions_do_not_wait_for_each_other() -> None:
    """Announced, asked for and brought: three ways, for each of them."""
    line = LongLine(50, size=4, every=10)
    line.run(1000)
    assert [age for _, age in line.loads] == [150] * 85
    assert line.fetch.version == 84


def test_versions_that_are_gone_before_a_far_peer_can_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest is kept, and ten are made while a Get is on its way."""
    monkeypatch.setattr(kept_versions, "_KEPT_BYTES", 1)
    line = LongLine(50, size=64 * 8, every=10)
    line.run(1000)
    assert len(line.loads) >= 8
    assert max(age for _, age in line.loads) <= 60
    assert line.fetch.refused == 0


def test_after_a_new_connection_the_next_beat_asks() -> None:
    """However often in a row the line was cut before: patience is for slow lines."""
    fetch, source = WeightFetch(), blob(1, 64 * 8)
    begun(fetch, source, 3)
    for _ in range(40):
        fetch.ask_missing()
    for _ in range(5):
        fetch.reconnected()
        gets = fetch.ask_missing()
        assert [get.lo for get in gets] == [3, 4, 5, 6, 7]
    whole = pull(fetch, source, gets)
    assert whole is not None and fetch.version == 1


def test_versions_only_rise() -> None:
    rng, fetch, seen = random.Random(3), WeightFetch(), [-1]
    for step in range(2000):
        source = blob(step // 40 + rng.randrange(9), 64 * rng.randint(1, 12))
        for get in (fetch.on_announce(source.announce) + fetch.ask_missing())[: rng.randint(0, 2)]:
            for chunk in source.chunks(get)[: rng.randint(0, 9)]:
                fetch.on_chunk(*chunk)
        seen.append(fetch.version)
    assert seen == sorted(seen) and seen[-1] > 5


def test_another_broker_may_begin_below() -> None:
    fetch = WeightFetch()
    pull(fetch, blob(9), fetch.on_announce(blob(9).announce))
    fetch.reset(9)
    assert fetch.on_announce(blob(8).announce) == []
    fetch.reset(4)
    assert pull(fetch, blob(5), fetch.on_announce(blob(5).announce)) is not None


def test_of_several_announcements_only_the_newest() -> None:
    announces: list[Announce] = [blob(n).announce for n in (2, 5, 3)]
    assert blobs.newest(announces) == announces[1]
    assert blobs.newest([]) is None
