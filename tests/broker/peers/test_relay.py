"""A machine's relay: each version fetched once, laid on the shelf, and taken from there at once."""

import asyncio
import logging
import random
import statistics
import time
from pathlib import Path
from typing import Any, cast

import pytest

from headrace.broker.peers.relay import RelayEnd
from headrace.broker.protocol import bundles, hello_payload
from headrace.broker.protocol.messages import (
    Acting,
    Get,
    Hello,
    Message,
    Ping,
    Resync,
    Welcome,
    decode,
    encode,
)
from headrace.broker.weights.blobs import Blob
from headrace.broker.weights.subscriber import Subscriber
from headrace.broker.weights.weight_shelf import SegmentReader, ShelfError, WeightShelf
from tests.system.harness.figures import say


def blob(version: int, size: int = 5000) -> Blob:
    return Blob.of(version, "layout", random.Random(version).randbytes(size))


class Relay:
    """One that speaks to nobody."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shelf = WeightShelf(folder / "weights")
        self.end = RelayEnd(
            "tcp://broker:1", name="n", inc=1, shelf=self.shelf, context=cast(Any, None)
        )
        self.said: list[Message] = []
        monkeypatch.setattr(
            self.end.link, "send", lambda frames: self.said.append(decode(frames)[0])
        )

    def fetches(self, whole: Blob) -> None:
        self.end.handle(whole.announce, ())
        for chunk, body in whole.chunks(Get(whole.announce.version, 0, 64)):
            self.end.handle(chunk, [body])


@pytest.fixture
def relay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Relay:
    return Relay(tmp_path, monkeypatch)


def test_a_version_is_fetched_once_and_lies_on_the_shelf(relay: Relay) -> None:
    relay.fetches(blob(3, 300_000))
    found = SegmentReader(relay.shelf.path).take(-1)
    assert found is not None
    assert found.announce == blob(3, 300_000).announce
    relay.end.handle(blob(3, 300_000).announce, ())  # every beat, to whoever may have missed it
    assert relay.said == [Get(3, 0, 3), Acting(3, found.announce.digest)]
    assert (relay.end.fetches, relay.end.nbytes) == (1, 300_000)


def test_samplers_hear_of_a_version_once_it_lies_there(relay: Relay) -> None:
    """They take it at once; before, they would only poll."""
    answered: list[tuple[Message, bool]] = []

    def answer(answers: Any) -> None:
        lies = SegmentReader(relay.shelf.path).look()
        for _, frames in answers:
            answered.append((decode(frames)[0], lies is not None and lies.version == 3))

    relay.end._answer = answer  # type: ignore[method-assign]
    relay.end.members.said(b"a", encode(Hello("actor", "a", 1)), connected=True)
    whole = blob(3, 300_000)
    relay.end.handle(whole.announce, ())
    assert answered == []
    relay.fetches(whole)
    assert answered == [(whole.announce, True)]


def test_samplers_hear_at_once_of_another_broker(relay: Relay) -> None:
    told: list[tuple[bytes, Message]] = []
    relay.end._answer = lambda answers: told.extend(  # type: ignore[method-assign]
        (route, decode([bundles.bytes_of(one) for one in frames])[0]) for route, frames in answers
    )
    run = hello_payload.pack({})
    relay.end.members.said(b"a", encode(Hello("actor", "a", 1)), connected=True)
    for broker in (7, 7, 8):
        relay.end.on_welcome(Welcome(broker, "run", 1.0, 10.0, "tcp://x:1", 3), [run])
    assert told == [(b"a", Resync(8))], "not of the first, nor of the same one again"


def test_it_speaks_as_a_node_and_beats(relay: Relay) -> None:
    hello, _ = decode([bytes(cast(Any, frame)) for frame in relay.end.hello_frames()])
    assert isinstance(hello, Hello)
    assert (hello.role, hello.spaces) == ("node", "")
    beats = [
        decode([bytes(cast(Any, frame)) for frame in frames])[0]
        for frames in relay.end.beat_frames()
    ]
    (beat,) = beats
    assert isinstance(beat, Ping)
    assert (beat.unacked, set(beat.stats)) == ((), {"clock"})


def test_what_there_is_no_room_for_is_not_fetched(
    relay: Relay, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Samplers see that nobody attends to the shelf, and fetch for themselves."""
    now = 0.0
    monkeypatch.setattr("headrace.broker.peers.relay.time.monotonic", lambda: now)
    relay.shelf.reserve(0)
    reserve = relay.shelf.reserve

    tried: list[int] = []

    def full(size: int) -> None:
        tried.append(size)
        raise ShelfError("no room for weights")

    monkeypatch.setattr(relay.shelf, "reserve", full)
    with caplog.at_level(logging.WARNING):
        for version in range(1, 20):
            relay.fetches(blob(version))
            now += 5.0
    assert relay.said == []
    assert len(tried) == 10, "every ten seconds"
    assert SegmentReader(relay.shelf.path).look() is None
    assert caplog.messages == [
        "no room for weights; until then each sampler fetches the weights itself"
    ]
    monkeypatch.setattr(relay.shelf, "reserve", reserve)
    now += 10.0
    relay.fetches(blob(30))
    assert SegmentReader(relay.shelf.path).take(-1) is not None


def test_weights_are_taken_within_milliseconds(tmp_path: Path) -> None:
    """From the moment at which they lie there; a sampler that paces itself waits for no more."""
    shelf = WeightShelf(tmp_path / "weights")
    shelf.reserve(5000)
    late: list[float] = []

    async def main() -> None:
        news = asyncio.Event()
        subscriber = Subscriber(cast(Any, None), shelf.path)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(subscriber.poll_shelf(news))
            for version in range(50):
                whole = blob(version)
                subscriber.handle(whole.announce, ())
                await asyncio.sleep(0.001 * (version % 7))
                news.clear()
                shelf.put(whole)
                laid = time.monotonic()
                await news.wait()
                late.append(time.monotonic() - laid)
                taken = subscriber.take()
                assert taken is not None
                assert taken.announce == whole.announce
            task.cancel()

    asyncio.run(asyncio.wait_for(main(), 20.0))
    median, worst = statistics.median(late), max(late)
    say("weights from the shelf", median_ms=1000 * median, worst_ms=1000 * worst)
    assert median < 0.02
