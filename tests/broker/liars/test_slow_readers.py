"""Peers that ask for weights and do not read them, or not so fast as versions come."""

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from headrace.broker.protocol import messages
from headrace.broker.protocol.messages import (
    Acting,
    Announce,
    Chunk,
    Delta,
    Get,
    GetDelta,
    Mark,
    Open,
    Payload,
    Piece,
)
from headrace.broker.transport.bulk import reassembly
from headrace.broker.transport.bulk.reassembly import Reassembly
from headrace.broker.transport.bulk.unsent_bytes import MOST_BULK
from headrace.broker.weights.blobs import Blob
from headrace.broker.weights.fetch import WeightFetch
from tests.broker.liars.talk import NOTHING, Broker, L

E, F = b"evaluator", b"another"
MIB = 1 << 20


class Lines(Broker):
    """A broker whose peers read when they are told to. `lines`: what waits for each."""

    def __init__(self, **limits: Any) -> None:
        self.lines: dict[bytes, deque[tuple[list[bytes], Callable[[], None] | None]]] = {}
        self.pieces: dict[bytes, Reassembly] = {}
        super().__init__(**limits)
        self.learner()
        self.hello(E, messages.Hello("evaluator", "e", 70), NOTHING)
        self.hello(F, messages.Hello("evaluator", "f", 71), NOTHING)

    def send(self, frames: Sequence[Payload], left: Callable[[], None] | None = None) -> bool:
        super().send(frames)
        parts = [bytes(frame) for frame in frames if not hasattr(frame, "buffer")]
        self.lines.setdefault(parts[0], deque()).append((parts[1:], left))
        return True

    def reads(self, route: bytes, nbytes: float = math.inf) -> list[tuple[Any, Any]]:
        """Until so much was read, or all; it answers marks, and puts together what is in pieces."""
        heard: list[tuple[Any, Any]] = []
        own = self.pieces.setdefault(route, Reassembly())
        while self.lines.get(route) and nbytes > 0:
            frames, left = self.lines[route].popleft()
            nbytes -= sum(map(len, frames))
            message, buffers = messages.decode(frames)
            if left is not None:
                left()
            match message:
                case Open():
                    own.begin(message, reassembly.opened(message, buffers))
                case Piece():
                    if (whole := own.add(message, buffers)) is not None:
                        heard.append(whole)
                case Mark():
                    self.hears(route, own.answer(message, self.now))
                case _:
                    heard.append((message, buffers))
        return heard

    def waits(self, route: bytes) -> int:
        return sum(len(frame) for frames, _ in self.lines[route] for frame in frames)

    def publishes(self, version: int, size: int = 4 * MIB, takes_s: float = 0.0) -> Announce:
        """Brings a version of the learner's, whole after so many seconds."""
        blob = Blob.of(version, "layout", bytes([version % 256]) * size)
        if version % 50 == 0:  # a rank 0 is believed in its HELLO
            Broker.now += 1.0
            self.learner(version=version)
        self.hears(L, blob.announce)
        Broker.now += takes_s
        for at in range(0, 400, 64):
            for chunk, body in blob.chunks(Get(version, at, at + 64)):
                self.hears(L, chunk, bytes(body))
        assert self.server.weights.fetch.version == version
        self.lines.pop(L, None)
        return blob.announce


def test_however_often_it_asks_so_much_waits_and_the_rest_comes_once() -> None:
    one = Lines()
    one.publishes(1)
    for _ in range(100):
        one.hears(E, Get(1, 0, 64))
    assert 0 < one.waits(E) <= 40_000
    one.hears(F, Get(1, 0, 64))
    assert len([m for m, _ in one.reads(F) if isinstance(m, Chunk)]) == 32, "others get all"
    indexes = [m.index for m, _ in one.reads(E) if isinstance(m, Chunk)]
    assert indexes == [*range(32), 0], "what waited was asked for again meanwhile"


def test_who_read_well_and_stops_holds_little_all_the_same() -> None:
    """On the fastest line there is, where a great deal may be on its way."""
    one = Lines()
    for version in (1, 2, 3, 4):
        one.publishes(version, 16 * MIB)
        for lo in (0, 64):
            one.hears(E, Get(version, lo, lo + 64))
            if version < 4:
                assert len([m for m, _ in one.reads(E) if isinstance(m, Chunk)]) == 64
    peer = one.server.roster.get(E)
    assert peer is not None and peer.bulk is not None and peer.bulk.window.size > 2 * MOST_BULK
    assert MOST_BULK // 2 < one.waits(E) <= MOST_BULK + 4096


def test_it_pays_for_what_it_gets_not_for_what_it_asks() -> None:
    one = Lines(mb_s=64.0)
    one.publishes(1)
    one.now = Broker.now = 200.0
    for _ in range(500):
        one.hears(E, Get(1, 0, 64))
    one.hears(F, Get(1, 0, 64))
    assert one.errors["rate"] == 0
    assert len([m for m, _ in one.reads(F) if isinstance(m, Chunk)]) == 32


def test_asking_for_what_is_not_there_is_not_remembered() -> None:
    one = Lines()
    one.publishes(1)
    peer = one.server.roster.get(E)
    assert peer is not None
    for at in range(0, 1 << 20, 64):
        one.hears(E, Get(1, at, 1 << 53))
    one.hears(E, Get(999, 0, 1 << 53))
    assert len(peer.wanted_chunks) <= 32


@pytest.mark.parametrize(("takes_s", "most"), [(0.0, 3), (0.2, 4)])
def test_versions_that_nobody_reads_are_not_kept(takes_s: float, most: int) -> None:
    """From a learner on a slow line the broker asks for changes, and keeps what they are of."""
    one = Lines()
    for version in range(1, 60):
        one.publishes(version, takes_s=takes_s)
        inc, route = 100 + version, b"slow %d" % version
        one.hello(route, messages.Hello("evaluator", "slow", inc), NOTHING)
        one.hears(route, Get(version, 0, 64))
        assert one.server.weights.weight_bytes <= most * 4 * MIB


@pytest.mark.slow
def test_a_slow_line_ends_what_it_began_though_versions_go_by() -> None:
    """Two chunks go through it while a version comes; 40 of them make one. Beside it peers that
    ask for each version and read none."""
    one, fetch, whole = Lines(), WeightFetch(), 0
    size = 5 * MIB
    for version in range(1, 250):
        announce = one.publishes(version, size)
        one.hears(F, Get(version, 0, 64))
        gets = fetch.on_announce(announce) + fetch.ask_missing()
        for get in gets:
            one.hears(E, get)
        for message, buffers in one.reads(E, 270_000):
            if not isinstance(message, Chunk):
                continue
            blob, more = fetch.on_chunk(message, buffers[0])
            for get in more:
                one.hears(E, get)
            if blob is not None:
                whole += 1
                one.hears(E, messages.Acting(blob.announce.version, blob.announce.digest))
    assert whole >= 8


@pytest.mark.parametrize("route", [b"w", L])
def test_who_reads_numbers_gets_no_weights(route: bytes) -> None:
    one = Lines()
    one.hello(b"w", messages.Hello("watcher", "w", 80), NOTHING)
    one.publishes(1)
    one.hears(route, Get(1, 0, 64))
    assert one.errors["unexpected"] == 1
    assert not [m for m, _ in one.reads(route) if isinstance(m, Chunk)]


def test_who_asks_for_changes_gets_them_and_what_it_has_is_kept_for_that() -> None:
    one = Lines()
    one.publishes(1)
    announced = one.publishes(2)
    one.hears(E, GetDelta(2, 0, 40, 1))
    one.hears(F, Get(2, 0, 40))
    kinds = [type(message) for message, _ in one.reads(E)]
    assert kinds.count(Delta) == 32 and kinds.count(Chunk) == 0
    kinds = [type(message) for message, _ in one.reads(F)]
    assert kinds.count(Delta) == 0 and kinds.count(Chunk) == 32
    one.hears(E, Acting(2, announced.digest))
    for version in (3, 4, 5, 6):
        one.publishes(version)
    one.hears(E, GetDelta(6, 0, 40, 2))
    kinds = [type(message) for message, _ in one.reads(E)]
    assert kinds.count(Delta) == 32 and kinds.count(Chunk) == 0


@pytest.mark.parametrize("base", [0, 99, 1 << 35])
def test_changes_of_what_the_broker_does_not_have_come_whole(base: int) -> None:
    one = Lines()
    one.publishes(1)
    one.hears(E, GetDelta(1, 0, 40, base))
    kinds = [type(message) for message, _ in one.reads(E)]
    assert kinds.count(Chunk) == 32 and kinds.count(Delta) == 0
