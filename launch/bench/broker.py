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
from collections.abc import Callable, Sequence
from typing import Any

import uvloop
import zmq

from broker import endpoints
from broker.actor_end import ActorEnd
from broker.config import BrokerConfig, PacingConfig
from broker.inbox import Key
from broker.journal import Journal
from broker.learner_end import LearnerEnd
from broker.mailbox import Mailbox
from broker.wire import Deliver, Payload
from launch import broker as broker_main
from launch import config, process
from launch.bench import report

_BATCH = 32  # unrolls an optimiser step, as in the IMPALA paper
_BARE_QUEUE = 32  # messages in each of the bare side's four queues
_LAG = 1  # (1 + 1) x 32 = 64 unrolls on their way; the bare side's four queues hold 128


def bench(*, size: int = 262_144, seconds: float = 3.0, pairs: int = 5) -> dict[str, Any]:
    process.keep_memory()  # here and in all children, ours and bare alike
    report.parameters(
        bytes=size, seconds=seconds, pairs=pairs, batch=_BATCH, in_flight=_BATCH * (_LAG + 1)
    )
    ours, bare = [], []
    for pair in range(pairs):
        bare.append(_measure(_bare_forwarder, _bare_sender, _bare_receiver, size, seconds))
        ours.append(_measure(_broker, _sampler, _learner, size, seconds))
        report.parameters(
            pair=pair, bare=f"{bare[-1]:.0f}/s", ours=f"{ours[-1]:.0f}/s",
            ratio=f"{ours[-1] / bare[-1]:.2f}",
        )  # fmt: skip
    ratios = [a / b for a, b in zip(ours, bare, strict=True)]
    figures = {
        "bytes": size,
        "ours_per_s": round(statistics.median(ours)),
        "bare_per_s": round(statistics.median(bare)),
        "ours_mb_per_s": round(statistics.median(ours) * size / 1e6),
        "ratio": round(statistics.median(ratios), 3),
        "ratio_min": round(min(ratios), 3),
        "ratio_max": round(max(ratios), 3),
    }
    report.result("broker", figures)
    return figures


Role = Callable[[str, int], Any]


def _measure(
    middle: Role, source: Role, sink: Callable[[str, int, float], float], size: int, seconds: float
) -> float:
    """Three processes; this one is the sink. Returns messages a second."""
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        address = f"ipc://{folder}/b"
        children = [_fork(middle, address, size), _fork(source, address, size)]
        try:
            return sink(address, size, seconds)
        finally:
            for pid in reversed(children):
                os.kill(pid, signal.SIGTERM)
                os.waitpid(pid, 0)


def _fork(role: Role, address: str, size: int) -> int:
    pid = os.fork()
    if pid == 0:
        process.die_with_parent()
        process.keep_memory()
        process.start_logging("bench", quiet=True)
        try:
            role(address, size)
        finally:
            os._exit(0)
    return pid


# ---- ours ------------------------------------------------------------------------------------


def _run() -> config.Run:
    return config.Run(
        pacing=PacingConfig(batch_unrolls=_BATCH, max_lag=_LAG, max_lag_hard=10**6),
        broker=BrokerConfig(beat_s=1.0),
    )


def _broker(address: str, _: int) -> None:
    broker_main.serve(
        _run(), bind=address, metrics_host="127.0.0.1", metrics_port=None, report=None
    )


def _sampler(address: str, size: int) -> None:
    """Sends what credit allows, at once."""

    async def main() -> int:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        end = ActorEnd(
            address, name="bench", inc=process.incarnation(), context=context,
            journal=Journal(None, ""),
        )  # fmt: skip
        body = bytearray(os.urandom(size))
        async with asyncio.TaskGroup() as group:
            group.create_task(end.link.run(), name="link")
            while end.run is None:
                end.news.clear()
                await end.news.wait()
            end.open(streams=_STREAMS, spaces=("bench", "bytes"))
            while True:
                sent = False
                for stream in range(_STREAMS):
                    if end.outbox.may_start(stream, _ANY_VERSION):
                        end.outbox.start(stream)
                        end.put(
                            stream, versions=(0, 0), steps=1, digest=0, ended=0, episodes=(),
                            buffers=(body,),
                        )  # fmt: skip
                        sent = True
                if sent:
                    await asyncio.sleep(0)
                else:
                    end.news.clear()
                    await end.news.wait()

    process.run_async(main)


_STREAMS = 16
_ANY_VERSION = 2**62  # no policy here, so no weights to wait for


def _learner(address: str, size: int, seconds: float) -> float:
    """Says DONE for every full batch; counts those."""

    async def main() -> float:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        batch: list[Key] = []
        done = 0
        first = asyncio.Event()

        def accept(message: Deliver, buffers: Sequence[Payload]) -> str:
            nonlocal done
            assert len(buffers[0]) == size
            batch.append((message.inc, message.stream, message.seq))
            if len(batch) == _BATCH:
                done += 1
                first.set()
                keys = list(batch)
                batch.clear()
                end.trained(keys, version=done)
            return ""

        run = _run()
        end = LearnerEnd(
            address, name="bench", inc=process.incarnation(), rank=0, world=1, run=run.run.name,
            shared=config.shared(run), spaces=("bench", "bytes"), unroll_bytes=size, accept=accept,
            free=lambda: _BATCH * (_LAG + 1) - len(batch), journal=Journal(None, ""),
            context=context,
        )  # fmt: skip
        try:
            async with asyncio.timeout(60):
                async with asyncio.TaskGroup() as group:
                    link = group.create_task(end.link.run(), name="link")
                    await first.wait()
                    await asyncio.sleep(0.5)  # let the flow settle
                    before, began = done, time.perf_counter()
                    await asyncio.sleep(seconds)
                    rate = (done - before) * _BATCH / (time.perf_counter() - began)
                    link.cancel()
            return rate
        finally:
            context.destroy(linger=0)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


# ---- bare ------------------------------------------------------------------------------------


def _bare_forwarder(address: str, _: int) -> None:
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

    process.run_async(main)


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
