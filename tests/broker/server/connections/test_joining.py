"""A broker that is late with its WELCOME is not made later: peers say HELLO ever less often."""

import asyncio
import itertools
import time
from pathlib import Path

import pytest
import zmq

from headrace.broker.journal.journal import Journal
from headrace.broker.peers.sampler import SamplerEnd
from headrace.broker.protocol import hello_payload, messages
from headrace.broker.transport import endpoints


async def heard(path: Path, *, answer_after: int) -> list[float]:
    """When a silent broker heard HELLO; to that many of them it answers with WELCOME."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router = endpoints.router(context)
    address = endpoints.bind(router, f"ipc://{path}/b")
    end = SamplerEnd(address, name="late", inc=7, context=context, journal=Journal(None, ""))
    times: list[float] = []
    try:
        async with asyncio.TaskGroup() as group:
            link = group.create_task(end.link.run())
            until = time.monotonic() + 5.0
            while time.monotonic() < until:
                await asyncio.sleep(0.01)
                while router.poll(0):
                    route, *frames = router.recv_multipart()
                    message, _ = messages.decode(frames)
                    if isinstance(message, messages.Hello):
                        times.append(time.monotonic())
                    if len(times) == answer_after:
                        welcome = messages.Welcome(1, "r", 1.0, 10.0, f"ipc://{path}/b.pub", 0)
                        body = hello_payload.pack({})
                        router.send_multipart([route, *messages.encode(welcome, body)])
            link.cancel()
    finally:
        router.close(0)
        context.destroy(linger=0)
    return times


@pytest.mark.slow
def test_hellos_without_an_answer_come_ever_less_often(tmp_path: Path) -> None:
    times = asyncio.run(heard(tmp_path, answer_after=0))
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert 3 <= len(times) <= 6  # 25 at the pace of the first two
    assert gaps[-1] > 2 * gaps[0]


@pytest.mark.slow
def test_the_answer_ends_them(tmp_path: Path) -> None:
    assert len(asyncio.run(heard(tmp_path, answer_after=2))) == 2
