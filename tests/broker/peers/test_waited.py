"""Checks the count of versions that a sampler's unrolls wait to be trained."""

from collections.abc import Iterator

import pytest
import zmq

from headrace.broker.journal.journal import Journal
from headrace.broker.peers.outbox import FinishedUnroll, Outbox
from headrace.broker.peers.sampler import SamplerEnd
from headrace.broker.protocol.messages import Ack, Limit, Outcome


@pytest.fixture
def end() -> Iterator[SamplerEnd]:
    with zmq.Context() as context:
        made = SamplerEnd(
            "tcp://127.0.0.1:1", name="", inc=1, context=context, journal=Journal(None, "")
        )
        made.outbox = Outbox(inc=1, streams=2)
        made.outbox.on_limit(Limit(((0, 99, 0), (1, 99, 0))))
        yield made
        context.destroy(linger=0)


def put(end: SamplerEnd, stream: int, version: int) -> None:
    end.weights.acting = version
    end.outbox.start(stream)
    end.put(stream, FinishedUnroll((b"",), (version, version), 1, 0))


def trained(end: SamplerEnd, stream: int, seq: int, version: int) -> None:
    end.weights.acting = version
    end.handle(Ack(Outcome.TRAINED, ((stream, seq, seq + 1),)), ())


def test_it_is_the_fewest_of_the_latest(end: SamplerEnd) -> None:
    assert end.waited == 0, "nothing is known"
    put(end, 0, version=10)
    put(end, 1, version=11)
    trained(end, 0, 0, version=14)
    trained(end, 1, 0, version=14)
    assert end.waited == 0, "what one or two say does not stand for all"
    for seq in (1, 2, 3):
        put(end, 0, version=20 + seq)
        trained(end, 0, seq, version=26 + seq)
    # 14 - 11 - 1: the step that trained it made one of the versions.
    assert end.waited == 2
    put(end, 0, version=30)
    trained(end, 0, 4, version=36)
    assert end.waited == 5


def test_one_that_was_trained_before_new_weights_came_waited_for_none(end: SamplerEnd) -> None:
    for seq in range(4):
        put(end, 0, version=7)
        trained(end, 0, seq, version=7)
    assert end.waited == 0
