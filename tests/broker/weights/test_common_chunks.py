"""Checks that chunks which a version has in common with the one that is here do not travel."""

import random
from collections import deque

import msgspec
import pytest

from headrace.broker.protocol.messages import Get
from headrace.broker.weights import blobs
from headrace.broker.weights.blobs import Blob
from headrace.broker.weights.common_chunks import Versions, changed_pieces, same_chunks
from headrace.broker.weights.fetch import WeightFetch
from headrace.broker.weights.kept_versions import KeptVersions

CHUNK = 64


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobs, "CHUNK_BYTES", CHUNK)


class Rows:
    """Makes versions of a population's weights: each changes few chunks."""

    def __init__(self, chunks: int, seed: int = 0) -> None:
        self.body = bytearray(random.Random(seed).randbytes(CHUNK * chunks - 5))
        self.version = 0

    def change(self, *chunks: int) -> Blob:
        for at in chunks:
            self.body[CHUNK * at] ^= 1
        self.version += 1
        return Blob.of(self.version, "layout", bytes(self.body))


def pull(fetch: WeightFetch, source: Blob) -> tuple[Blob | None, list[int]]:
    """Fetch a version; returns it, and the chunks that were asked for."""
    waiting, asked, newest = deque(fetch.on_announce(source.announce)), [], None
    while waiting:
        for chunk, part in source.chunks(waiting.popleft()):
            asked.append(chunk.index)
            whole, more = fetch.on_chunk(chunk, part)
            newest = whole or newest
            waiting.extend(more)
    return newest, asked


def settled(rows: Rows) -> WeightFetch:
    """Returns a fetch that has seen twice that most chunks stay."""
    fetch = WeightFetch()
    pull(fetch, rows.change())
    pull(fetch, rows.change(1))
    return fetch


def test_only_what_changed_is_asked_for() -> None:
    rows = Rows(20)
    fetch = settled(rows)
    source = rows.change(3, 4, 9, 19)
    assert fetch.on_announce(source.announce) == [
        Get(3, 0, 1),  # it comes unasked
        Get(3, 3, 5),
        Get(3, 9, 10),
        Get(3, 19, 20),
    ]
    whole = None
    for at in (19, 4, 0, 9, 3):
        assert whole is None
        whole, more = fetch.on_chunk(*source.chunks(Get(3, at, at + 1))[0])
        assert more == []
    assert whole is not None and bytes(whole.body) == bytes(rows.body)


def test_a_version_that_is_the_same_ends_with_its_first_chunk() -> None:
    rows = Rows(20)
    fetch = settled(rows)
    whole, asked = pull(fetch, rows.change())
    assert whole is not None and whole.announce.version == 3 and asked == [0]


def test_more_changes_than_a_window() -> None:
    rows = Rows(3 * blobs.WINDOW)
    fetch = settled(rows)
    source = rows.change(*range(0, 3 * blobs.WINDOW, 2))
    gets = fetch.on_announce(source.announce)
    assert len(gets) == blobs.WINDOW
    whole, asked = pull(fetch, rows.change(*range(0, 3 * blobs.WINDOW, 2)))
    assert whole is None and asked == []  # the one on its way comes first
    for get in gets:
        _, more = fetch.on_chunk(*source.chunks(get)[0])
    assert len(more) == blobs.WINDOW // 2


def test_what_changes_everywhere_is_not_kept() -> None:
    fetch, rng = WeightFetch(), random.Random(1)
    for version in range(4):
        _, asked = pull(fetch, Blob.of(version, "layout", rng.randbytes(CHUNK * 10)))
        assert asked == [*range(10)] and fetch.nbytes == 0


def test_from_another_broker_everything_is_fetched() -> None:
    rows = Rows(20)
    fetch = settled(rows)
    fetch.reset(0)
    _, asked = pull(fetch, rows.change(3))
    assert asked == [*range(20)]


def test_a_wrong_copy_is_not_used_twice() -> None:
    """Hashes of 64 bits may lie; the digest of the whole does not."""
    rows = Rows(20)
    fetch = settled(rows)
    source = rows.change(3)
    lie = msgspec.structs.replace(source.announce, digest="0" * 32)
    for get in fetch.on_announce(lie):
        for chunk, part in source.chunks(get):
            assert fetch.on_chunk(chunk, part)[0] is None
    assert (fetch.refused, fetch.version) == (1, 2)
    whole, asked = pull(fetch, source)
    assert whole is not None and asked == [*range(20)]


def test_lost_chunks_and_versions_that_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much is lost or gone meanwhile, what comes out is right and versions rise; and far
    less is carried than all of it."""
    monkeypatch.setattr("headrace.broker.weights.kept_versions._KEPT_BYTES", 1)
    rng, rows, fetch, kept = random.Random(3), Rows(40), WeightFetch(), KeptVersions()
    contents: dict[int, bytes] = {}
    carried, seen, fetching = 0, [-1], -1
    pipe: deque[Get] = deque()
    for _ in range(3000):
        if rng.random() < 0.1:
            source = rows.change(*rng.sample(range(40), rng.randrange(4)))
            contents[source.announce.version] = bytes(source.body)
            kept.add(source, {fetching})
            pipe.extend(fetch.on_announce(source.announce))
        if not pipe:
            pipe.extend(fetch.ask_missing())
            continue
        get = pipe.popleft()
        newer = kept.newer_instead(get)
        if newer is not None:
            pipe.extend(fetch.on_announce(newer))
            get = Get(newer.version, get.lo, get.hi)
        fetching = get.version
        for chunk, part in kept.chunks(get):
            carried += 1
            if rng.random() < 0.05:
                continue
            whole, more = fetch.on_chunk(chunk, part)
            pipe.extend(more)
            if whole is not None:
                assert bytes(whole.body) == contents[whole.announce.version]
                seen.append(whole.announce.version)
    assert seen == sorted(set(seen)) and len(seen) > 100 and fetch.refused == 0
    assert carried < 0.4 * 40 * len(seen)


def test_what_two_versions_have_in_common_is_in_memory_once() -> None:
    rows = Rows(8)
    fetch = settled(rows)
    before, _ = pull(fetch, rows.change(4))
    after, _ = pull(fetch, rows.change(2))
    assert before is not None and after is not None
    shared = [one is other for one, other in zip(before.parts, after.parts, strict=True)]
    assert shared == [at not in (0, 2) for at in range(8)]
    assert bytes(after.body) == bytes(rows.body)


def test_pieces_that_changed() -> None:
    rows = Rows(8)
    first, second = rows.change(), rows.change(1, 2, 7)
    assert same_chunks(first.announce, second.announce) == [0, 3, 4, 5, 6]
    assert [at for at, _ in changed_pieces(second, first.announce)] == [CHUNK, 2 * CHUNK, 7 * CHUNK]
    assert changed_pieces(second, second.announce) == []
    assert len(changed_pieces(second, None)) == 8
    other = Blob(msgspec.structs.replace(first.announce, layout="other"), first.parts)
    assert changed_pieces(second, other.announce) == changed_pieces(second, None)


def test_the_hash_of_a_chunk_that_is_the_same_memory_is_known() -> None:
    parts = (b"a" * 64, b"b" * 64, b"c")
    versions = Versions("layout")
    before = versions.of(0, parts)
    assert before.announce == Blob.of(0, "layout", b"".join(parts)).announce
    versions._before = Blob(msgspec.structs.replace(before.announce, hashes=b"x" * 24), parts)
    others = (parts[0], bytes(bytearray(parts[1])), parts[2], b"d" * 64)
    after = versions.of(1, others).announce.hashes
    assert [after[8 * at : 8 * at + 8] == b"x" * 8 for at in range(4)] == [True, False, True, False]


@pytest.mark.parametrize("chunks", [4, 2 * blobs.WINDOW + 3])
def test_a_version_that_is_gone_though_its_first_chunk_came(chunks: int) -> None:
    """A learner sends the first unasked, and has a newer version when the others are asked for: the
    newer one is whole without a beat's wait."""
    rows, fetch = Rows(chunks), WeightFetch()
    gone = rows.change()
    waiting = deque(fetch.on_announce(gone.announce))
    assert fetch.on_chunk(*gone.first()) == (None, [])
    newer = rows.change(1, 2)
    assert fetch.on_announce(newer.announce) == []
    whole, turns = None, 0
    while waiting:
        get, turns = waiting.popleft(), turns + 1
        for chunk, part in newer.chunks(Get(newer.announce.version, get.lo, get.hi)):
            done, more = fetch.on_chunk(chunk, part)
            whole = done or whole
            waiting.extend(more)
    assert whole is not None and bytes(whole.body) == bytes(rows.body)
    assert turns <= 2 + chunks // blobs.WINDOW
