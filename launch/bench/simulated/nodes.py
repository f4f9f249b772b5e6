"""Simulated nodes: a real relay each, whose samplers are in the same process, without sockets.

    samplers --calls--> relay --a real socket--> broker

So the thousands of sockets inside a node, which other machines would serve, do not count.
"""

import asyncio
import heapq
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, cast

import zmq

from headrace.broker.peers.members import Answers
from headrace.broker.peers.relay import RelayEnd
from headrace.broker.peers.sampler import SamplerEnd
from headrace.broker.protocol import bundles
from headrace.broker.protocol.messages import Announce, Buffer, Chunk, Message, Payload
from headrace.broker.transport import several
from headrace.broker.weights.blobs import Blob
from headrace.broker.weights.weight_shelf import WeightShelf
from headrace.launch.bench.simulated import processes
from headrace.launch.process import runtime

_LOOK_EVERY_S: Final = 0.05


class _Line:
    """Stands for a sampler's connection to its relay."""

    def __init__(self, node: "SimulatedNode", route: bytes) -> None:
        self._node = node
        self._route = route

    def send(self, frames: Sequence[Payload]) -> bool:
        self._node.hears(self._route, frames)
        return True


class SimulatedNode(RelayEnd):
    """Passes on what the samplers given to it say."""

    def __init__(
        self, spec: processes.SamplersSpec, shelf: Path, context: "zmq.Context[zmq.Socket[bytes]]"
    ) -> None:
        laid = WeightShelf(shelf)
        laid.reserve(0)
        name = f"node-{os.getpid()}-{shelf.name}"
        super().__init__(
            several.choose(spec.broker, name),
            name=name,
            inc=runtime.incarnation(),
            shelf=laid,
            context=context,
            key=processes.key(spec.key, "actor"),
        )
        self._laid_down: Blob | None = None  # the newest weights on its shelf
        self.arrived = 0  # bytes of weights, those of chunks that came again too
        self._samplers: dict[bytes, SamplerEnd] = {}  # by route
        self._said = asyncio.Event()  # something waits for the broker
        self._answers: list[tuple[bytes, Sequence[Payload]]] = []  # not told yet

    def adopt(self, sampler: SamplerEnd) -> None:
        """Connects a sampler; `serve` beats for it."""
        route = b"%d" % len(self._samplers)
        self._samplers[route] = sampler
        sampler.link._mail = cast(Any, _Line(self, route))

    def handle(self, message: Message, buffers: Sequence[Buffer]) -> None:
        if isinstance(message, Chunk):
            self.arrived += sum(map(len, buffers))
        super().handle(message, buffers)

    def _lay_down(self) -> None:
        self._laid_down = self.weights.blob or self._laid_down
        super()._lay_down()

    def hears(self, route: bytes, frames: Sequence[Payload]) -> None:
        connected = self.link.welcome is not None
        self._answer(self.members.said(route, frames, connected=connected))
        self._said.set()

    def _answer(self, answers: Answers) -> None:
        if answers and not self._answers:
            asyncio.get_running_loop().call_soon(self._tell)
        self._answers += answers

    def _tell(self) -> None:
        answers, self._answers = self._answers, []
        for route, frames in answers:
            sampler = self._samplers[route]
            if bundles.kind_of(frames) is Announce:  # taken without looking at shared memory
                sampler.weights.blob = self._laid_down
                sampler.news.set()
            else:
                sampler.link._dispatch([bundles.bytes_of(frame) for frame in frames])

    async def _pass_on_loop(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._beat_loop(), name="beats")
            while True:
                await self._said.wait()
                self._said.clear()
                for bundle in self.members.take():
                    self.link.send(bundle)

    async def _beat_loop(self) -> None:
        """Says HELLO for each sampler until it is welcome, then beats for it."""
        due = [(0.0, at, one) for at, one in enumerate(self._samplers.values())]
        while True:
            now = time.monotonic()
            while due and due[0][0] <= now:
                _, at, sampler = due[0]
                line: Any = sampler.link._mail
                heapq.heapreplace(due, (now + sampler.link._beat(line, 0.0), at, sampler))
            await asyncio.sleep(_LOOK_EVERY_S)
