"""Receiving under a storm of cancellations and timeouts: what arrives must reach somebody."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import uvloop
import zmq
import zmq.asyncio

from headrace.broker.transport import endpoints
from headrace.broker.transport.mailbox import Mailbox
from tests.system.harness.figures import say

_MESSAGES = 20_000
_BURST = 16  # sent at once, then a pause of about the time after which a reader is cancelled
# Half a millisecond; uvloop counts whole ones, and would cancel before anything could begin.
_LOOPS = {"asyncio": (asyncio.new_event_loop, 0.0005), "uvloop": (uvloop.new_event_loop, 0.001)}
_STILL_S = 2.0  # nothing more comes then


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[tuple["zmq.Context[zmq.Socket[bytes]]", str]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        yield context, f"ipc://{tmp_path}/p"
    finally:
        context.destroy(linger=0)


async def _send(context: "zmq.Context[zmq.Socket[bytes]]", at: str) -> None:
    """Numbered messages in bursts; what the pipe does not take now is sent a moment later."""
    with Mailbox(endpoints.dealer(context)) as mail:
        mail.socket.connect(at)
        number = 0
        while number < _MESSAGES:
            for _ in range(_BURST):
                number += number < _MESSAGES and mail.send([number.to_bytes(4)])
            await asyncio.sleep(_LOOPS["asyncio"][1])
        await asyncio.Event().wait()  # until cancelled: what waits in the socket must go out


async def _storm(
    receive: Callable[[], Awaitable[list[int]]], *, every_s: float
) -> tuple[list[int], int]:
    """All that a reader got hold of that is cancelled again and again; and how often it was."""
    loop = asyncio.get_running_loop()
    got: list[int] = []
    cancelled, last = 0, loop.time()
    while len(got) < _MESSAGES and loop.time() < last + _STILL_S:
        try:
            async with asyncio.timeout(every_s):
                while True:
                    # What a cancelled call had in its hands is in nobody's.
                    numbers = await receive()
                    got += numbers
                    last = loop.time() if numbers else last
        except TimeoutError:
            cancelled += 1
    return got, cancelled


async def _through_a_mailbox(
    context: "zmq.Context[zmq.Socket[bytes]]", at: str, every_s: float
) -> tuple[list[int], int]:
    router = endpoints.router(context)
    endpoints.bind(router, at)
    with Mailbox(router) as mail:

        async def receive() -> list[int]:
            return [int.from_bytes(frames[1].bytes) for frames in await mail.receive(1.0)]

        async with asyncio.TaskGroup() as group:
            sender = group.create_task(_send(context, at))
            result = await _storm(receive, every_s=every_s)
            sender.cancel()
        return result


async def _through_the_library(
    context: "zmq.Context[zmq.Socket[bytes]]", at: str, every_s: float
) -> tuple[list[int], int]:
    with zmq.asyncio.Context(context).socket(zmq.ROUTER) as router:
        router.bind(at)

        async def receive() -> list[int]:
            return [int.from_bytes((await router.recv_multipart())[1])]

        async with asyncio.TaskGroup() as group:
            sender = group.create_task(_send(context, at))
            with contextlib.suppress(zmq.ZMQError):
                result = await _storm(receive, every_s=every_s)
            sender.cancel()
        return result


@pytest.mark.parametrize("loop", _LOOPS)
def test_a_cancelled_reader_loses_nothing(
    pipe: tuple["zmq.Context[zmq.Socket[bytes]]", str], loop: str
) -> None:
    """Cancels the reader of a mailbox every half millisecond while 20,000 messages come in. The
    same storm over the library's own receive loses some, so it is a storm.
    """
    context, at = pipe
    factory, every_s = _LOOPS[loop]
    with asyncio.Runner(loop_factory=factory) as runner:
        got, cancelled = runner.run(_through_a_mailbox(context, at, every_s))
        naive, _ = runner.run(_through_the_library(context, at + "2", every_s))
    say(
        f"storm {loop}",
        faults=cancelled,
        generated=_MESSAGES,
        received=len(set(got)),
        lost=_MESSAGES - len(set(got)),
        twice=len(got) - len(set(got)),
        lost_by_the_library=_MESSAGES - len(set(naive)),
    )
    assert got == list(range(_MESSAGES))
    assert cancelled > 20
    assert len(set(naive)) < _MESSAGES
