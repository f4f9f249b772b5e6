"""A learner behind a slow line sends its broker what changed; the same bytes arrive."""

import time
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest

from headrace.broker.journal.journal import Journal
from headrace.broker.peers.learner import LearnerEnd
from headrace.broker.protocol.bundles import bytes_of
from headrace.broker.protocol.hello_payload import HelloPayload
from headrace.broker.protocol.messages import (
    Chunk,
    Delta,
    Get,
    GetDelta,
    Hello,
    Message,
    Payload,
    Welcome,
    decode,
)
from headrace.broker.server import server
from headrace.broker.weights import blobs
from headrace.broker.weights.blobs import Blob
from tests.broker.liars.talk import Broker, L

WEIGHTS = np.random.default_rng(0).normal(size=1000).astype(np.float32)
NEAR, FAR = "ipc:///tmp/b", "tcp://10.0.0.1:5755"


@pytest.fixture(autouse=True)
def small_chunks_and_no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobs, "CHUNK_BYTES", 1000)
    monkeypatch.setattr(server, "Mailbox", lambda broker: broker)
    monkeypatch.setattr(Broker, "now", 100.0)
    monkeypatch.setattr(time, "monotonic", lambda: Broker.now)


def blob(version: int) -> Blob:
    return Blob.of(version, "layout", (WEIGHTS * np.float32(1 + version * 1e-4)).tobytes())


class Line:
    """Carries what a learner and its broker say; `takes_s`: a whole version on it."""

    def __init__(self, endpoint: str, takes_s: float) -> None:
        self.broker, self.takes_s = Broker(), takes_s
        self.said: list[Message] = []
        self.asked: list[Get] = []
        self._waiting: list[tuple[Message, list[bytes]]] = []
        self.end = LearnerEnd(
            endpoint, Hello("learner", "l50", 50), HelloPayload(), context=cast(Any, None),
            free=lambda: 8, accept=lambda *_: None, journal=Journal(None, ""),
        )  # fmt: skip
        self.joins()

    def joins(self, protocol: int = 0) -> None:
        self.broker.learner()
        if protocol:
            peer = self.broker.server.weights._roster.get(L)
            assert peer is not None
            peer.protocol = protocol
        self.end.link._mail = cast(Any, self)
        self.end.link.welcome = welcome = Welcome(9, "run", 1.0, 10.0, "", 0)
        self.end.on_welcome(welcome, ())

    def send(self, frames: Sequence[Payload]) -> bool:
        message, buffers = decode([bytes_of(frame) for frame in frames])
        self._waiting.append((message, [bytes(one) for one in buffers]))
        return True

    def publishes(self, version: int) -> tuple[type[Get], bool, int]:
        """Returns how the broker asked for it, whether a chunk came unasked, and its bytes on the
        line."""
        self.said.clear()
        self.asked.clear()
        self.end.publish(blob(version))
        nbytes = 0
        while self._waiting or self._answered():
            message, body = self._waiting.pop(0)
            self.said.append(message)
            nbytes += sum(map(len, body)) if isinstance(message, Chunk) else 0
            Broker.now += self.takes_s * sum(map(len, body)) / WEIGHTS.nbytes
            self.broker.hears(L, message, *body)
        held = self.broker.server.weights.blob
        assert held is not None and held.announce == blob(version).announce
        first = next(n for n, said in enumerate(self.said) if isinstance(said, Chunk))
        return type(self.asked[-1]), first == 1, nbytes

    def _answered(self) -> bool:
        """Lets the learner hear what the broker asks for."""
        for route, message in self.broker.pump():
            if route == L and isinstance(message, Get):
                self.asked.append(message)
                self.end.handle(message, ())
        return bool(self._waiting)


def test_on_a_slow_line_changes_go_up() -> None:
    line = Line(FAR, takes_s=1.0)
    assert [line.publishes(version)[0] for version in (1, 2)] == [Get, Get]
    line.publishes(3)  # of which the first chunk comes unasked, and changes in it too
    for version in (4, 5):
        kind, unasked, nbytes = line.publishes(version)
        assert kind is GetDelta and nbytes < 0.8 * WEIGHTS.nbytes
        assert all(isinstance(said, Delta) for said in line.said[1:])
    line.takes_s = 0.01
    kind, _, _ = line.publishes(6)
    assert kind is GetDelta  # before it is known
    kind, unasked, nbytes = line.publishes(7)
    assert (kind, nbytes) == (Get, WEIGHTS.nbytes), "whole again, without a beat's wait"
    kind, unasked, nbytes = line.publishes(8)
    assert (kind, unasked, nbytes) == (Get, True, WEIGHTS.nbytes)


def test_a_learner_beside_its_broker_sends_whole_chunks() -> None:
    """However busy the machine is: packing would make it busier."""
    line = Line(NEAR, takes_s=1.0)
    for version in range(1, 6):
        line.publishes(version)
        assert not any(isinstance(said, Delta) for said in line.said)


def test_an_older_learner_is_asked_for_whole_chunks() -> None:
    line = Line(FAR, takes_s=1.0)
    line.joins(protocol=2)
    assert [line.publishes(version)[0] for version in range(1, 6)] == [Get] * 5


def test_what_another_learner_publishes_is_asked_for_whole() -> None:
    """Asks for no changes, as another may have other weights of that number."""
    line = Line(FAR, takes_s=1.0)
    assert [line.publishes(version)[0] for version in range(1, 5)][-1] is GetDelta
    line.broker.server.weights._publisher = 51
    assert line.publishes(5)[0] is Get
