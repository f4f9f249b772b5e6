"""Unrolls per second, sampler -> broker -> learner, acknowledged, against bare forwarding.

The bare side is the least that could do the job: a DEALER, one process that passes zero-copy
frames from a ROUTER to another peer, a DEALER; no header, no credit, no acknowledgement. Both
sides run in turn, with the same sizes and number of processes, and the ratio is taken pair by pair.
"""

import asyncio
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import zmq

from headrace.broker.transport import endpoints
from headrace.broker.transport.mailbox import Mailbox
from headrace.launch.bench import output
from headrace.launch.bench.simulated import flow
from headrace.launch.process import logs, runtime

_BARE_QUEUE = 32  # messages in each of the bare side's four queues: 128; ours has 64 on their way


def bench(*, size: int = 262_144, seconds: float = 3.0, pairs: int = 5) -> dict[str, Any]:
    runtime.keep_memory()  # here and in all children, as our own processes do
    output.parameters(
        bytes=size,
        seconds=seconds,
        pairs=pairs,
        batch=flow.BATCH,
        in_flight=flow.BATCH * (flow.LAG + 1),
    )
    ours, bare = [], []
    for pair in range(pairs):
        bare.append(forward_bare(size, seconds))
        ours.append(flow.measure(size=size, seconds=seconds).per_s)
        output.parameters(
            pair=pair,
            bare=f"{bare[-1]:.0f}/s",
            ours=f"{ours[-1]:.0f}/s",
            ratio=f"{ours[-1] / bare[-1]:.2f}",
        )
    figures = {
        "bytes": size,
        "ours_per_s": round(statistics.median(ours)),
        "bare_per_s": round(statistics.median(bare)),
        "ours_mb_per_s": round(statistics.median(ours) * size / 1e6),
        **output.paired_ratios(ours, bare),
    }
    output.result("broker", figures)
    return figures


def forward_bare(size: int, seconds: float) -> float:
    """Returns messages a second through three processes; this one receives."""
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        address = f"ipc://{folder}/b"
        children = [_fork(_bare_forwarder, address), _fork(_bare_sender, address, size)]
        try:
            return _bare_receiver(address, size, seconds)
        finally:
            for pid in reversed(children):
                os.kill(pid, signal.SIGTERM)
                os.waitpid(pid, 0)


def _fork(role: Callable[..., object], *given: object) -> int:
    pid = os.fork()
    if pid == 0:
        runtime.die_with_parent()
        runtime.keep_memory()
        logs.start("bench", quiet=True)
        try:
            role(*given)
        finally:
            os._exit(0)
    return pid


def _bare_forwarder(address: str) -> None:
    async def main() -> int:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        socket = endpoints.router(context)
        socket.set(zmq.SNDHWM, _BARE_QUEUE)
        socket.set(zmq.RCVHWM, _BARE_QUEUE)
        endpoints.bind(socket, address)
        mail = Mailbox(socket)
        sink = b""
        while True:
            for frames in await mail.receive(1.0):
                if len(frames) == 2 and not len(frames[1]):
                    sink = frames[0].bytes
                elif sink:
                    while not mail.send([sink, *frames[1:]]):  # noqa: ASYNC110  # bare
                        await asyncio.sleep(0)

    runtime.run_async(main)


def _bare_sender(address: str, size: int) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = endpoints.dealer(context)
    socket.set(zmq.SNDHWM, _BARE_QUEUE)
    socket.connect(address)
    body = bytearray(os.urandom(size))
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    while True:
        socket.send(body, copy=False)


def _bare_receiver(address: str, size: int, seconds: float) -> float:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = endpoints.dealer(context)
    socket.set(zmq.RCVHWM, _BARE_QUEUE)
    socket.connect(address)
    socket.send(b"")
    count, began, until = 0, 0.0, float("inf")
    settle = time.perf_counter() + 0.5
    while time.perf_counter() < until:
        assert len(socket.recv(copy=False)) == size
        count += 1
        if not began and time.perf_counter() > settle:
            count, began = 0, time.perf_counter()
            until = began + seconds
    rate = count / (time.perf_counter() - began)
    socket.close(0)
    context.term()
    return rate
