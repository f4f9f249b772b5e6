"""A mailbox tells when ZeroMQ has passed a message on, or dropped it."""

import asyncio

import pytest
import zmq

from headrace.broker.transport import endpoints
from headrace.broker.transport.mailbox import Mailbox

PATIENCE_S = 60.0
BODY = bytes(1 << 20)


async def told(event: asyncio.Event) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await event.wait()


@pytest.mark.parametrize("size", [10, 1 << 20], ids=["small", "large"])
@pytest.mark.parametrize("received", [False, True], ids=["ours", "a frame that came in"])
def test_a_message_that_is_read_has_left(size: int, received: bool) -> None:
    async def main(context: "zmq.Context[zmq.Socket[bytes]]") -> None:
        router, dealer = endpoints.router(context), endpoints.dealer(context)
        address = endpoints.bind(router, "tcp://127.0.0.1:0")
        dealer.connect(address)
        with Mailbox(router) as mail:
            dealer.send(BODY[:size])
            async with asyncio.timeout(PATIENCE_S):
                while not (messages := await mail.receive(1.0)):
                    pass
            route, frame = messages[0]
            left = asyncio.Event()
            answer = frame if received else BODY[:size]
            assert mail.send([route.bytes, answer], left.set)
            del messages, frame, answer
            assert await asyncio.to_thread(dealer.recv) == BODY[:size]
            await told(left)
            assert not mail._leaving
        dealer.close(0)

    with zmq.Context() as context:
        asyncio.run(main(context))


def test_what_is_not_read_has_not_left_until_its_reader_is_gone() -> None:
    async def main(context: "zmq.Context[zmq.Socket[bytes]]") -> None:
        router, dealer = endpoints.router(context), endpoints.dealer(context)
        dealer.set(zmq.RCVHWM, 1)
        dealer.connect(endpoints.bind(router, "tcp://127.0.0.1:0"))
        with Mailbox(router) as mail:
            dealer.send(b"hello")
            async with asyncio.timeout(PATIENCE_S):
                while not (messages := await mail.receive(1.0)):
                    pass
            route = messages[0][0].bytes
            gone = [asyncio.Event() for _ in range(100)]
            for event in gone:  # more than any kernel keeps
                assert mail.send([route, BODY], event.set)
            await told(gone[0])
            assert not gone[-1].is_set()
            dealer.close(0)
            while not all(event.is_set() for event in gone):
                await mail.receive(0.05)  # the socket hears only then that its peer is gone

    with zmq.Context() as context:
        asyncio.run(main(context))


def test_what_is_sent_to_nobody_has_left() -> None:
    async def main(context: "zmq.Context[zmq.Socket[bytes]]") -> None:
        router = endpoints.router(context)
        endpoints.bind(router, "tcp://127.0.0.1:0")
        with Mailbox(router) as mail:
            left = asyncio.Event()
            assert not mail.send([b"nobody", BODY], left.set)
            await told(left)

    with zmq.Context() as context:
        asyncio.run(main(context))
