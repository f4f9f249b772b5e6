"""Target: a whole broker without sockets, given any sequence of messages from four routes."""

from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import zmq
from prometheus_client import CollectorRegistry

from headrace.broker.config import BrokerConfig
from headrace.broker.ledger.ledger import Ledger
from headrace.broker.ledger.state import LedgerState
from headrace.broker.protocol import hello_payload, messages
from headrace.broker.server import server
from headrace.broker.server.connections.counters import Counters
from headrace.broker.server.connections.roster import Roster
from headrace.broker.server.metrics import BrokerMetrics
from headrace.broker.server.server import Server
from headrace.launch.config import differences
from tests.fuzz import shaping
from tests.fuzz.reading import Reader

_RUN: dict[str, Any] = {"run": {"name": "small"}, "env": {"id": "x", "kwargs": {"a": [1]}}}
ROUTES = (b"\0aaaa", b"\0bbbb", b"\0cccc", b"\0dddd")


class Mail:
    """Stands for a Mailbox: takes all that is sent, and sees that it is a message."""

    def __init__(self, socket: object) -> None:
        self.socket = socket

    def send(
        self, frames: Sequence[messages.Payload], left: Callable[[], None] | None = None
    ) -> bool:
        if left is not None:
            left()  # everybody reads
        at = next(n for n, frame in enumerate(frames) if bytes(_plain(frame))[:2] == b"HR")
        messages.decode([_plain(frame) for frame in frames[at:]])
        return True

    def reaches(self, frames: Sequence[messages.Payload]) -> bool:
        return self.send(frames)

    def close(self, linger_ms: int = 0) -> None:
        """Nothing."""


def _plain(frame: messages.Payload) -> messages.Buffer:
    return frame.buffer if isinstance(frame, zmq.Frame) else frame


def made() -> Server:
    state = LedgerState(
        batch=2, max_lag=2, max_lag_hard=64, queue_bytes=1 << 20, attempts=3, first_tag=1 << 32
    )
    nowhere: Any = None
    with mock.patch.object(server, "Mailbox", Mail):
        own = Server(
            BrokerConfig(),
            Ledger(state, lease_s=10.0),
            Counters(),
            inc=99,
            shared=_RUN,
            announce="tcp://x:1",
            roster=Roster("small", lambda other: differences.first_difference(_RUN, other)),
            router=nowhere,
            publisher=nowhere,
        )
    return own


def scrape(own: Server) -> None:
    list(BrokerMetrics(CollectorRegistry(), own).collect())


def receive(own: Server, route: bytes, frames: Sequence[bytes]) -> None:
    own._receive([zmq.Frame(route), *map(zmq.Frame, frames)])
    own._pump()
    assert own.ledger.unaccounted() == 0


def honest(at: int) -> list[bytes]:
    """A learner first, then samplers of two streams each."""
    role = "actor" if at else "learner"
    hello = messages.Hello(role, "n", at + 1, spaces="s", version=0)
    streams = tuple((number, 0, 0, 0, ()) for number in range(2))
    said = hello_payload.HelloPayload(spaces="s", streams=streams)
    if at == 0:
        said = hello_payload.HelloPayload(unroll_bytes=shaping.UNROLL_BYTES, want=8)
    return [bytes(_plain(frame)) for frame in messages.encode(hello, hello_payload.encode(said))]


def broker(data: bytes) -> None:
    """No message may stop the broker, and its count of unrolls is exact after each."""
    reader, own = Reader(data), made()
    for at in range(reader.byte() % 5):
        receive(own, ROUTES[at], honest(at))
    while reader.left > 0:
        at = reader.byte() % len(ROUTES)
        receive(own, ROUTES[at], shaping.message(reader, inc=at + 1))
    own.status()
    scrape(own)
