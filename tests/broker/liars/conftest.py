"""The clock, and an honest run for liars to join."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from headrace.broker.protocol import messages
from headrace.broker.server import bulk_arrivals, peer_messages, status, weight_messages
from headrace.broker.server import server as server_module
from headrace.broker.server.connections import peer_log, replies
from tests.broker.liars.talk import Broker


@pytest.fixture(autouse=True)
def _no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(monotonic=lambda: Broker.now, time=lambda: Broker.now)
    monkeypatch.setattr(Broker, "now", 100.0)
    monkeypatch.setattr(server_module, "time", clock)
    monkeypatch.setattr(server_module, "Mailbox", lambda broker: broker)
    for module in (peer_log, replies, bulk_arrivals, peer_messages, status, weight_messages):
        monkeypatch.setattr(module, "time", clock)


@pytest.fixture
def honest() -> Iterator[Broker]:
    """A sampler and a learner at work: three unrolls delivered. The books balance at the end."""
    one = Broker()
    one.sampler()
    one.learner()
    one.pump()
    one.unrolls([0, 1, 2])
    assert len(list(one.told(messages.Deliver))) == 3
    yield one
    one.pump()
    assert one.ledger.unaccounted() == 0
