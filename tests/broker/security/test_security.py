"""Who gets in: real handshakes against a Gate, broken questions, and a Gate that fails inside."""

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast
from unittest import mock

import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.security import curve, keys
from headrace.broker.security.handshake import Failure, failure
from headrace.broker.security.keys import Key
from headrace.broker.transport import endpoints
from headrace.broker.transport.key_gate import LATER, NO, YES, Gate, Request
from headrace.broker.transport.mailbox import Mailbox

LONG_S = 20.0
BROKER = keys.make("broker")
NODE = keys.make("actor", "node7", BROKER.public)
OTHER = keys.make("actor", "node8", BROKER.public)
Context = zmq.Context[zmq.Socket[bytes]]


def authorised(folder: Path) -> Path:
    made = folder / "authorised"
    made.mkdir(mode=0o700)
    (made / "actor-node7.pub").write_text(keys.public_text(NODE.public))
    (made / "learner.pub").write_text(keys.public_text(keys.make("learner").public))
    return made


class Door:
    """A Gate and a router behind it, as the broker has them."""

    def __init__(self, context: Context, folder: Path, address: str) -> None:
        self.context = context
        self.folder = authorised(folder)
        self.now = 0.0
        self.gate = Gate(context, self.folder, clock=lambda: self.now)
        router = endpoints.router(context, BROKER)
        self.gate.watch(router)
        self.address = endpoints.bind(router, address)
        self.mail = Mailbox(router)

    async def says(self, key: Key | None) -> str:
        """What becomes of a message: the user that it came from, or why there was no handshake."""
        hello = uuid.uuid4().bytes  # what was said before may still be on its way
        with Mailbox(endpoints.dealer(self.context, key)) as mail:
            monitor = curve.monitor_handshakes(mail.socket)
            mail.socket.connect(self.address)
            try:
                async with asyncio.timeout(LONG_S):
                    while True:
                        mail.send([hello])
                        for frames in await self.mail.receive(0.01):
                            if frames[-1].bytes == hello:
                                return str(frames[-1].get("User-Id"))
                        for event in curve.failures(monitor):
                            return failure(*event).value
            finally:
                curve.stop_monitor(mail.socket, monitor)

    async def counts(self, number: int, *reasons: str) -> None:
        """Waits until so many were refused for these reasons together."""
        deadline = time.monotonic() + LONG_S
        while sum(self.gate.refused[reason] for reason in reasons) != number:
            assert time.monotonic() < deadline, self.gate.refused
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def door(folder: Path, address: str = "tcp://127.0.0.1:*") -> AsyncIterator[Door]:
    context = Context()
    made = Door(context, folder, address)
    try:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(made.gate.run())
            yield made
            assert not task.done()
            task.cancel()
    finally:
        made.mail.close()
        context.destroy(0)


def at_the_door(
    folder: Path, story: Callable[[Door], Awaitable[None]], address: str = "tcp://127.0.0.1:*"
) -> None:
    async def main() -> None:
        async with door(folder, address) as made:
            await story(made)

    asyncio.run(main())


@pytest.mark.parametrize("way", ["tcp", "ipc"])
def test_a_known_key_comes_in_by_its_name(tmp_path: Path, way: str) -> None:
    async def story(door: Door) -> None:
        assert await door.says(NODE) == "actor:node7"
        assert door.gate.accepted == 1
        assert not any(door.gate.refused.values())

    at_the_door(tmp_path, story, "tcp://127.0.0.1:*" if way == "tcp" else f"ipc://{tmp_path}/s")


def test_an_unknown_key_is_refused_and_counted_and_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(door: Door) -> None:
        for _ in range(3):
            assert await door.says(OTHER) == Failure.REFUSED.value
        assert door.gate.refused["unknown"] == 3
        assert await door.says(NODE) == "actor:node7"

    with caplog.at_level(logging.WARNING):
        at_the_door(tmp_path, story)
    lines = [r.message for r in caplog.records if "refused 127.0.0.1" in r.message]
    assert len(lines) == 1
    assert OTHER.public in lines[0]


def test_no_key_and_another_brokers_key_are_counted(tmp_path: Path) -> None:
    stranger = NODE._replace(broker=keys.make("broker").public)

    async def story(door: Door) -> None:
        assert await door.says(stranger) == Failure.HUNG_UP.value
        await door.counts(1, "failed")
        assert await door.says(None) in (Failure.MISMATCH.value, Failure.HUNG_UP.value)
        # Who hangs up first decides what the other end sees of it.
        await door.counts(2, "mechanism", "failed")
        assert door.gate.refused["unknown"] == 0
        assert await door.says(NODE) == "actor:node7"

    at_the_door(tmp_path, story)


def test_a_withdrawn_key_is_refused_and_its_connection_is_told_apart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(door: Door) -> None:
        assert await door.says(NODE) == "actor:node7"
        assert door.gate.allowed("actor:node7")
        (door.folder / "actor-node7.pub").unlink()
        door.now += 1.0
        assert not door.gate.allowed("actor:node7")
        assert door.gate.allowed("learner:")
        assert await door.says(NODE) == Failure.REFUSED.value

    with caplog.at_level(logging.WARNING):
        at_the_door(tmp_path, story)
    assert "the key of actor node7 is withdrawn" in caplog.text


def test_while_the_folder_is_gone_newcomers_are_put_off(tmp_path: Path) -> None:
    async def story(door: Door) -> None:
        away = door.folder.with_name("away")
        door.folder.rename(away)
        door.now += 1.0
        assert await door.says(NODE) == Failure.LATER.value
        assert door.gate.refused["failed"] == 1
        assert door.gate.allowed("actor:node7")
        away.rename(door.folder)
        door.now += 1.0
        assert await door.says(NODE) == "actor:node7"

    at_the_door(tmp_path, story)


def test_a_failure_inside_puts_one_client_off_and_serves_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(door: Door) -> None:
        decide = door.gate.decide
        monkeypatch.setattr(door.gate, "decide", mock.Mock(side_effect=KeyError("broken")))
        for _ in range(3):
            assert await door.says(NODE) == Failure.LATER.value
        assert door.gate.refused["failed"] == 3
        monkeypatch.setattr(door.gate, "decide", decide)
        assert await door.says(NODE) == "actor:node7"

    at_the_door(tmp_path, story)


GOOD = [b"1.0", b"7", curve.DOMAIN, b"10.0.0.1", b"", b"CURVE", keys.raw(NODE.public)]
BROKEN = {
    "nothing": [],
    "empty": [b""],
    "short": GOOD[:4],
    "another version": [b"2.0", *GOOD[1:]],
    "no key": GOOD[:6],
    "two keys": [*GOOD, b"x" * 32],
    "a short key": [*GOOD[:6], b"x" * 31],
    "bytes": [b"\xff" * 9] * 40,
}


@pytest.mark.parametrize("frames", BROKEN.values(), ids=BROKEN)
def test_broken_questions_are_answered_and_the_next_client_is_served(
    tmp_path: Path, frames: list[bytes]
) -> None:
    async def story(door: Door) -> None:
        with Mailbox(door.context.socket(zmq.DEALER)) as asking:
            asking.socket.connect("inproc://zeromq.zap.01")
            asking.send([b"", *frames])
            async with asyncio.timeout(LONG_S):
                while not (answers := await asking.receive(0.1)):
                    pass
            status = [frame.bytes for frame in answers[0]][3]
        assert status == LATER
        assert door.gate.refused["failed"] == 1
        assert await door.says(NODE) == "actor:node7"

    at_the_door(tmp_path, story)


class TestDecisions:
    """Without sockets."""

    @pytest.fixture
    def gate(self, tmp_path: Path) -> Gate:
        made = Gate(cast(Any, Silent()), authorised(tmp_path), clock=lambda: 0.0)
        assert made.authorised.users
        return made

    def ask(self, gate: Gate, **changes: Any) -> bytes:
        asked = Request(b"1", curve.DOMAIN, "a", b"CURVE", (keys.raw(NODE.public),))
        return gate.decide(asked._replace(**changes)).status

    def test_a_known_key_in_our_domain_and_nothing_else(self, gate: Gate) -> None:
        assert self.ask(gate) == YES
        assert self.ask(gate, domain=b"") == NO
        assert self.ask(gate, domain=b"*") == NO
        assert self.ask(gate, mechanism=b"NULL", credentials=()) == NO
        assert self.ask(gate, mechanism=b"PLAIN", credentials=(b"u", b"p")) == NO
        assert self.ask(gate, credentials=(keys.raw(OTHER.public),)) == NO
        assert gate.refused == {"unknown": 1, "mechanism": 4, "failed": 0}
        assert gate.accepted == 1

    def test_a_flood_of_different_keys_is_counted_not_said(
        self, gate: Gate, caplog: pytest.LogCaptureFixture
    ) -> None:
        for number in range(5000):
            assert self.ask(gate, credentials=(number.to_bytes(32),)) == NO
        assert gate.refused["unknown"] == 5000
        assert len(caplog.records) <= 300

    @given(st.lists(st.binary(max_size=40), min_size=1, max_size=12))
    @settings(deadline=None)
    def test_any_question_gets_an_answer_and_only_our_keys_a_yes(self, frames: list[bytes]) -> None:
        reply = self.asked_anything(frames)
        assert reply[-4] in (NO, LATER)
        assert len(reply) >= 7

    def asked_anything(self, frames: list[bytes]) -> list[bytes]:
        gate = Gate(cast(Any, Silent()), Path("/nowhere"), clock=lambda: 0.0)
        return gate.answer(frames)


class Silent:
    """In the place of a context and of its socket."""

    def socket(self, _: int) -> "Silent":
        return self

    def set(self, *_: Any) -> None: ...

    def bind(self, _: str) -> None: ...


def test_libzmq_lets_nobody_in_before_there_is_a_gate(tmp_path: Path) -> None:
    """Else a mistake in the order of things would open every door."""
    context = Context()
    router, dealer = endpoints.router(context, BROKER), endpoints.dealer(context, NODE)
    try:
        dealer.set(zmq.IMMEDIATE, 0)
        dealer.connect(endpoints.bind(router, f"ipc://{tmp_path}/s"))
        dealer.send(b"hello")
        assert not router.poll(500)
    finally:
        context.destroy(0)


def test_announcements_are_for_known_keys_only(tmp_path: Path) -> None:
    async def story(door: Door) -> None:
        publisher = endpoints.publisher(door.context, BROKER)
        address = endpoints.bind(publisher, f"ipc://{tmp_path}/p")
        listeners = {key: endpoints.subscriber(door.context, key) for key in (NODE, OTHER, None)}
        with contextlib.ExitStack() as sockets:
            mails = {
                key: sockets.enter_context(Mailbox(socket)) for key, socket in listeners.items()
            }
            for mail in mails.values():
                mail.socket.connect(address)
            async with asyncio.timeout(LONG_S):
                heard: list[Any] = []
                while not heard:
                    publisher.send(b"news")
                    heard = await mails[NODE].receive(0.05)
            for key in (OTHER, None):
                assert not await mails[key].receive(0.2)
        publisher.close(0)

    at_the_door(tmp_path, story)
