"""Simulated nodes: a real relay each, whose samplers are in the same process, without sockets.

    samplers --calls--> relay --a real socket--> broker

So the thousands of sockets inside a node, which other machines would serve, do not count.
"""

import asyncio
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
from headrace.broker.protocol.messages import Buffer, Chunk, Message, Payload
from headrace.broker.transport import several
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
        self.arrived = 0  # bytes of weights, those of chunks that came again too
        self._samplers: dict[bytes, SamplerEnd] = {}  # by route
        self._said = asyncio.Event()  # something waits for the broker

    def adopt(self, sampler: SamplerEnd) -> None:
        """Connects a sampler; `serve` beats for it."""
        route = b"%d" % len(self._samplers)
        self._samplers[route] = sampler
        sampler.link._mail = cast(Any, _Line(self, route))

    def handle(self, message: Message, buffers: Sequence[Buffer]) -> None:
        if isinstance(message, Chunk):
            self.arrived += sum(map(len, buffers))
        super().handle(message, buffers)

    def hears(self, route: bytes, frames: Sequence[Payload]) -> None:
        connected = self.link.welcome is not None
        self._answer(self.members.said(route, frames, connected=connected))
        self._said.set()

    def _answer(self, answers: Answers) -> None:
        loop = asyncio.get_running_loop()
        for route, frames in answers:
            said = [bundles.bytes_of(frame) for frame in frames]
            loop.call_soon(self._samplers[route].link._dispatch, said)

    async def _pass_on_loop(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._beat_loop(), name="beats")
            while True:
                await self._said.wait()
                self._said.clear()
                for bundle in bundles.pack(self.members.take()):
                    self.link.send(bundle)

    async def _beat_loop(self) -> None:
        """Says HELLO for each sampler until it is welcome, then beats for it."""
        due = dict.fromkeys(self._samplers.values(), 0.0)
        while True:
            now = time.monotonic()
            for sampler in [one for one, when in due.items() if when <= now]:
                line: Any = sampler.link._mail
                due[sampler] = now + sampler.link._beat(line, 0.0)
            await asyncio.sleep(_LOOK_EVERY_S)
