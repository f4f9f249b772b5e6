"""A peer's link at a broker whose keys change under it."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import zmq

from headrace.broker.peer_errors import UnreportedErrors
from headrace.broker.protocol import messages
from headrace.broker.protocol.messages import (
    Announce,
    Buffer,
    Bye,
    Message,
    Payload,
    Trouble,
    Welcome,
)
from headrace.broker.security import curve, keys
from headrace.broker.security.keys import Key
from headrace.broker.transport import endpoints
from headrace.broker.transport.key_gate import Gate
from headrace.broker.transport.link import Link, RefusedError
from headrace.broker.transport.mailbox import Mailbox

LONG_S = 20.0
BROKER = keys.make("broker")
NODE = keys.make("actor", "node7", BROKER.public)._replace(path="node7.key")
ANNOUNCE = Announce(3, "layout", "digest", 1, 1, b"h" * 16)


class Peer:
    """Says HELLO, and notes what it hears."""

    def __init__(self) -> None:
        self.inc = 1
        self.welcomes = 0
        self.heard: list[Message] = []

    def hello_frames(self) -> list[Payload]:
        return messages.encode(messages.Hello("watcher", "w", 1))

    def on_welcome(self, welcome: Welcome, body: Sequence[Buffer]) -> None:  # noqa: ARG002
        self.welcomes += 1

    def handle(self, message: Message, buffers: Sequence[Buffer]) -> None:  # noqa: ARG002
        self.heard.append(message)

    def beat_frames(self) -> list[list[Payload]]:
        return [self.hello_frames()]  # any word will do, it is answered


@contextlib.asynccontextmanager
async def broker(
    folder: Path,
    key: Key | None = BROKER,
    told: list[Message] | None = None,
    answers_while: Callable[[], bool] = lambda: True,
) -> AsyncIterator["zmq.Socket[bytes]"]:
    """Welcomes whoever gets in; gives its publisher. `told` fills with what it hears."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    gate = Gate(context, folder / "authorised") if key is not None else None
    router, publisher = endpoints.router(context, key), endpoints.publisher(context, key)
    endpoints.bind(router, f"ipc://{folder}/b")
    endpoints.bind(publisher, f"ipc://{folder}/b.pub")

    async def answers() -> None:
        welcome = messages.encode(Welcome(1, "run", 0.1, 1.0, f"ipc://{folder}/b.pub", 0))
        with Mailbox(router) as mail:
            while True:
                for frames in await mail.receive(1.0):
                    if answers_while():
                        mail.send([frames[0].bytes, *welcome])
                    if told is not None:
                        told.append(messages.decode([frame.buffer for frame in frames[1:]])[0])

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(answers())]
            if gate is not None:
                tasks.append(group.create_task(gate.run()))
            yield publisher
            for task in tasks:
                task.cancel()
    finally:
        context.destroy(0)


async def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def linked(folder: Path, key: Key | None) -> AsyncIterator[tuple[Link, Peer]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    peer = Peer()
    link = Link(f"ipc://{folder}/b", peer, context, subscribe=True, key=key)
    try:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(link.run())
            yield link, peer
            task.cancel()
    finally:
        context.destroy(0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "authorised").mkdir(mode=0o700)
    authorise(tmp_path)
    return tmp_path


def authorise(folder: Path) -> Path:
    path = folder / "authorised" / "actor-node7.pub"
    path.write_text(keys.public_text(NODE.public))
    return path


async def hears(publisher: "zmq.Socket[bytes]", peer: Peer) -> None:
    """Announcements come through."""
    peer.heard.clear()

    def announced() -> bool:
        publisher.send_multipart(messages.encode(ANNOUNCE))
        return bool(peer.heard)

    await until(announced)


@pytest.mark.slow
def test_who_was_let_in_waits_until_its_key_is_back(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.broker.transport.announcements._AGAIN_S", 0.2)

    async def story() -> None:
        async with linked(folder, NODE) as (link, peer):
            async with broker(folder) as publisher:
                await until(lambda: peer.welcomes)
                await hears(publisher, peer)
            authorise(folder).unlink()
            async with broker(folder):
                await until(lambda: "refused the key in node7.key" in caplog.text)
                assert link.welcome is None
                peer.welcomes = 0
                authorise(folder)
                await until(lambda: peer.welcomes)
            (folder / "authorised").rename(folder / "away")
            async with broker(folder) as publisher:
                monitor = curve.monitor_handshakes(publisher)
                await until(lambda: "cannot read its authorised keys" in caplog.text)
                await until(lambda: monitor.poll(0))  # and the announcements were refused, too
                peer.welcomes = 0
                (folder / "away").rename(folder / "authorised")
                await until(lambda: peer.welcomes)
                await hears(publisher, peer)

    with caplog.at_level(logging.WARNING):
        asyncio.run(story())
    lines = [r.message for r in caplog.records if r.name == "headrace.broker.transport.link"]
    assert len([line for line in lines if "refused the key" in line]) == 1


@pytest.mark.parametrize(
    ("key", "at", "words", "or_else"),
    [
        (keys.make("actor", "x", BROKER.public)._replace(path="x.key"), BROKER, "key in x.key", ""),
        (None, BROKER, "give one with --key FILE", "it may want a key, give one with --key FILE"),
        (
            NODE,
            None,
            "works without keys, and we have the key in node7.key",
            "or it works without keys",
        ),
    ],
    ids=["unknown", "none", "needless"],
)
def test_who_was_never_let_in_ends(
    folder: Path,
    key: Key | None,
    at: Key | None,
    words: str,
    or_else: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Or it says what it may be, and tries on: when both ends break off at the same moment ZeroMQ
    does not tell why."""

    async def story() -> None:
        async with broker(folder, at), linked(folder, key):
            while True:
                await asyncio.sleep(0.01)
                if or_else and or_else in caplog.text:
                    raise TriesOnError

    with pytest.raises(ExceptionGroup) as group:
        asyncio.run(asyncio.wait_for(story(), LONG_S))
    refusal = next(iter(leaves(group.value)))
    if not isinstance(refusal, TriesOnError):
        assert isinstance(refusal, RefusedError)
        assert words in str(refusal)


class TriesOnError(Exception):
    """It said why it may be refused, and goes on."""


def leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for each in error.exceptions for leaf in leaves(each)]
    return [error]


@pytest.mark.slow
def test_a_broker_with_another_key_is_spoken_of_and_left_in_peace(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Handshakes that fail are few: the link stays away longer and longer."""

    async def story() -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        async with linked(folder, NODE):
            gate = Gate(context, folder / "authorised")
            router = endpoints.router(context, keys.make("broker"))
            gate.watch(router)
            endpoints.bind(router, f"ipc://{folder}/b")
            async with asyncio.TaskGroup() as group:
                task = group.create_task(gate.run())
                await until(lambda: "may be another broker's" in caplog.text)
                await asyncio.sleep(2.0)
                assert 3 <= gate.refused["failed"] <= 3 + 4
                task.cancel()
        context.destroy(0)

    with caplog.at_level(logging.WARNING):
        asyncio.run(story())


def test_errors_go_to_the_broker_with_the_beat(tmp_path: Path) -> None:
    """The longest text that there can be, in the widest letters, still fits a message."""
    told: list[Message] = []

    async def main() -> None:
        async with broker(tmp_path, None, told), linked(tmp_path, None) as (link, _):
            link.reports = UnreportedErrors()
            for number in range(3):
                link.reports.add(f"environment {number} failed")
            link.reports.add("\U0001f40d" * 5000)
            await until(lambda: sum(isinstance(one, Trouble) for one in told) == 2)

    asyncio.run(main())
    first, long = [one for one in told if isinstance(one, Trouble)]
    assert (first.inc, first.text, first.count) == (1, "environment 0 failed", 3)
    assert long.text.startswith("\U0001f40d" * 700)


def test_who_has_left_joins_no_more(tmp_path: Path) -> None:
    """Its last words cross with its farewell, and a broker that knows it no more asks who it is."""
    told: list[Message] = []
    resync = messages.encode(messages.Resync(1))

    async def main() -> None:
        async with broker(tmp_path, None, told), linked(tmp_path, None) as (link, peer):
            await until(lambda: peer.welcomes)
            link.leave(messages.encode(Bye(1, False, "enough")))
            await until(lambda: Bye(1, False, "enough") in told)
            told.clear()
            link._greeted = 0.0
            link._dispatch([memoryview(cast(bytes, frame)) for frame in resync])
            link.greet()
            await asyncio.sleep(0.3)  # three beats, and it has said nothing

    asyncio.run(main())
    assert told == []


@pytest.mark.slow
def test_who_took_the_broker_for_dead_subscribes_anew(tmp_path: Path) -> None:
    """Its host may have vanished: a subscriber sends nothing, so that no TCP would notice."""
    quiet = asyncio.Event()

    async def subscribed(publisher: "zmq.Socket[bytes]") -> None:
        await until(lambda: publisher.poll(0) and publisher.recv() == b"\x01")

    async def main() -> None:
        async with (
            broker(tmp_path, None, answers_while=lambda: not quiet.is_set()) as publisher,
            linked(tmp_path, None) as (link, peer),
        ):
            await until(lambda: peer.welcomes)
            await subscribed(publisher)
            quiet.set()
            await until(lambda: link.reconnects)
            quiet.clear()
            await until(lambda: link.welcome)
            await subscribed(publisher)
            await hears(publisher, peer)

    asyncio.run(main())
