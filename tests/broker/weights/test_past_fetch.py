"""Versions from before the newest: what is kept of them, and how a newcomer comes by them."""

from collections.abc import Sequence
from typing import cast

import msgspec
import pytest

from headrace.broker.protocol.messages import Announce, Get, Past, Payload, Welcome, decode
from headrace.broker.transport.link import Link
from headrace.broker.weights import blobs, kept_versions
from headrace.broker.weights.blobs import Blob
from headrace.broker.weights.kept_versions import KeptVersions
from headrace.broker.weights.snapshots import Snapshots
from headrace.broker.weights.subscriber import Subscriber


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobs, "CHUNK_BYTES", 64)


def blob(version: int) -> Blob:
    return Blob.of(version, "layout", bytes([version]) * 64 * 5)


def holder(*versions: int, keep: int = 4) -> KeptVersions:
    kept = KeptVersions()
    kept.past = Snapshots(every=10, keep=keep)
    for version in versions:
        kept.add(blob(version))
    return kept


class Line:
    """Holds what the subscriber asks for."""

    def __init__(self) -> None:
        self.asked: list[Get] = []
        self.subscriber = Subscriber(cast(Link, self))

    def send(self, frames: Sequence[Payload]) -> None:
        message, _ = decode([bytes(cast(bytes, frame)) for frame in frames])
        assert isinstance(message, Get)
        self.asked.append(message)

    def tell(self, *announces: Announce, past: bool = False) -> None:
        for announce in announces:
            told = Past(*msgspec.structs.astuple(announce)) if past else announce
            self.subscriber.handle(told, ())

    def answer(self, kept: KeptVersions) -> list[int]:
        """Answers all that is asked for; returns the versions, in order."""
        versions = []
        while self.asked:
            get = self.asked.pop(0)
            versions.append(get.version)
            newer = kept.newer_instead(get)  # as a broker answers
            if newer is not None:
                self.tell(newer)
                get = Get(newer.version, get.lo, get.hi)
            for chunk, part in kept.chunks(get):
                self.subscriber.handle(chunk, [part])
        return versions


def test_the_past_is_kept_beside_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_versions, "_KEPT_BYTES", 1)
    kept = holder(*range(36))
    assert list(kept.past.kept) == [0, 10, 20, 30]
    assert [version for version in range(36) if kept.indexes(Get(version, 0, 9))] == [
        *kept.past.kept,
        35,
    ]
    assert kept.nbytes == 5 * 64 * 5
    kept.add(blob(40))
    kept.add(blob(41))
    assert list(kept.past.kept) == [0, 20, 40] and kept.nbytes == 4 * 64 * 5
    kept.add(blob(15))  # from an older checkpoint
    assert list(kept.past.kept) == [0]


def test_what_is_too_large_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_versions, "_PAST_BYTES", 4 * 64 * 5 - 1)
    assert not holder(0, 10).past.kept
    assert list(holder(0, 10, keep=3).past.kept) == [0, 10]


def test_a_newcomer_gets_the_past_first_and_then_the_newest() -> None:
    kept, line = holder(*range(36)), Line()
    line.tell(*(one.announce for one in kept.past.kept.values()), past=True)
    line.tell(blob(34).announce, blob(35).announce)  # as they come out
    assert line.answer(kept) == [0, 10, 20, 30, 35]
    assert [(one.announce.version, bytes(one.body)) for one in line.subscriber.past] == [
        (version, bytes(blob(version).body)) for version in (0, 10, 20, 30)
    ]
    newest = line.subscriber.take()
    assert newest is not None and newest.announce.version == 35
    line.tell(*(one.announce for one in kept.past.kept.values()), past=True)  # a second HELLO
    assert not line.asked


def test_one_that_does_not_want_weights_now_gets_the_past_alone() -> None:
    kept, line = holder(0, 10), Line()
    line.subscriber.want(False)
    line.tell(kept.past.kept[0].announce, past=True)
    line.tell(blob(10).announce)
    assert line.answer(kept) == [0]
    line.subscriber.want(True)
    assert line.answer(kept) == [10]


def test_what_is_lost_is_asked_for_again() -> None:
    kept, line = holder(0, 10), Line()
    line.tell(kept.past.kept[0].announce, past=True)
    line.asked.clear()
    for _ in range(4):
        line.subscriber.beat()
    assert line.answer(kept) and len(line.subscriber.past) == 1


def test_what_is_gone_holds_nobody_up() -> None:
    kept, line = holder(0, 10), Line()
    line.tell(blob(5).announce, kept.past.kept[0].announce, past=True)
    line.tell(blob(10).announce)
    for _ in range(21):
        line.subscriber.beat()
        line.answer(kept)
    newest = line.subscriber.take()
    assert newest is not None and newest.announce.version == 10
    assert line.subscriber.past == []


def test_another_content_of_the_same_version_holds_nobody_up() -> None:
    """The learner went back, and the broker has the version anew."""
    kept, line = holder(0, 10), Line()
    other = Blob.of(10, "layout", bytes(64 * 5))
    line.tell(other.announce, past=True)
    line.tell(blob(10).announce)
    for _ in range(25):
        line.subscriber.beat()
        line.answer(kept)
    newest = line.subscriber.take()
    assert newest is not None and newest.announce.digest == blob(10).announce.digest
    assert line.subscriber.past == []


def test_of_another_broker_nothing_of_the_old_one_is_waited_for() -> None:
    kept, line = holder(0, 10), Line()
    line.subscriber.run = {}
    line.tell(blob(5).announce, past=True)
    line.asked.clear()
    line.subscriber.on_welcome(Welcome(7, "run", 1.0, 10.0, "", 10), ())
    line.tell(kept.past.kept[0].announce, past=True)
    line.tell(blob(11).announce)
    kept.add(blob(11))
    assert line.answer(kept) == [0, 11]


def test_weights_that_were_on_their_way_come_beside_the_past() -> None:
    kept, line = holder(0, 10), Line()
    line.tell(blob(10).announce)
    (get,), line.asked = line.asked, []
    line.tell(kept.past.kept[0].announce, past=True)  # after a second HELLO
    for chunk, part in kept.chunks(get):
        line.subscriber.handle(chunk, [part])
    newest = line.subscriber.take()
    assert newest is not None and newest.announce.version == 10
    assert line.answer(kept) == [0] and len(line.subscriber.past) == 1


def test_there_is_a_bound() -> None:
    line = Line()
    line.tell(*(blob(version).announce for version in range(80)), past=True)
    for version in range(64):
        for chunk, part in blob(version).chunks(line.asked.pop()):
            line.subscriber.handle(chunk, [part])
    assert len(line.subscriber.past) == 64 and not line.asked
