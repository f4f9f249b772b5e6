"""A process of many simulated samplers: real ends and sockets, no environments, no network."""

import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import zmq

from headrace.broker.journal.journal import Journal
from headrace.broker.peers.outbox import FinishedUnroll
from headrace.broker.peers.sampler import SamplerEnd
from headrace.broker.protocol.messages import (
    Ack,
    Buffer,
    Limit,
    Message,
    Outcome,
    Payload,
    Pong,
    Welcome,
)
from headrace.broker.sampler_figures import COUNTERS, HISTOGRAMS
from headrace.broker.transport import several
from headrace.launch.bench.simulated import processes
from headrace.launch.bench.simulated.latency import Latencies
from headrace.launch.bench.simulated.nodes import SimulatedNode
from headrace.launch.bench.simulated.processes import SamplersSpec
from headrace.launch.process import runtime

_ANY_VERSION = 2**62  # without weights no version is waited for
# About the figures of a real sampler: failures, games of a league and most buckets are 0, and zeros
# are not sent.
_FIGURES = [
    name
    for metric in (*COUNTERS, HISTOGRAMS[0])
    if metric.metric not in ("env_failures", "league_games")
    for name in metric.names()
]
_LOOK_EVERY_S = 0.05  # at what is open, at the end
_MOST_LIVES = 4096  # broker incarnations that one sampler records


class Told:
    """Keeps which samplers of a process there is news for: one task looks after thousands."""

    def __init__(self) -> None:
        self.some = asyncio.Event()
        self._samplers: dict[SimulatedSampler, None] = {}

    def add(self, sampler: "SimulatedSampler") -> None:
        self._samplers[sampler] = None
        self.some.set()

    def take(self) -> Iterable["SimulatedSampler"]:
        self.some.clear()
        told, self._samplers = self._samplers, {}
        return told


class _News:
    """Stands for a sampler's event of its own."""

    def __init__(self, sampler: "SimulatedSampler", told: Told) -> None:
        self._sampler = sampler
        self._told = told

    def set(self) -> None:
        self._told.add(self._sampler)


class SimulatedSampler(SamplerEnd):
    """Wraps a real end and records times of events, by the clock that all processes share."""

    def __init__(
        self,
        spec: SamplersSpec,
        name: str,
        context: "zmq.Context[zmq.Socket[bytes]]",
        journal: Journal,
        latencies: Latencies,
        told: Told,
        shelf: Path | None = None,
    ) -> None:
        self.spec = spec
        super().__init__(
            several.choose(spec.broker, name),
            name=name,
            inc=runtime.incarnation(),
            context=context,
            journal=journal,
            key=processes.key(spec.key, "actor"),
            shelf=shelf,
        )
        self.news = cast(asyncio.Event, _News(self, told))
        self.hellos = 0
        # For each broker incarnation: when it welcomed us, and acknowledged first; None = never.
        self.lives: list[tuple[float, float | None]] = []
        self.acknowledged_at = 0.0  # the last time
        self.pong_s = 0.0  # the longest from a PING to its PONG
        self._pings: deque[float] = deque()  # when the unanswered ones were sent
        self._welcomed_by = 0  # broker incarnation of the latest entry in lives
        self._newest_version = 0  # the newest version that the broker spoke of
        self._latencies = latencies
        # The one it acts with; without weights none is waited for.
        self._version = -1 if spec.weights else _ANY_VERSION
        self._opened = False  # it has asked for credit
        self._due = 0.0  # when the rate allows the next unroll
        self._timer: asyncio.TimerHandle | None = None  # until then
        self.say = self._says

    def hello_frames(self) -> list[Payload]:
        self.hellos += 1
        return super().hello_frames()

    def on_welcome(self, welcome: Welcome, body: Sequence[Buffer]) -> None:
        super().on_welcome(welcome, body)
        self._newest_version = max(self._newest_version, welcome.version)
        self._pings.clear()
        if welcome.broker_inc != self._welcomed_by and len(self.lives) < _MOST_LIVES:
            self._welcomed_by = welcome.broker_inc
            self.lives.append((time.monotonic(), None))

    @property
    def acting(self) -> int:
        """Returns the version it reports to act with: without weights, the newest it heard of."""
        return super().acting if self.spec.weights else self._newest_version

    def handle(self, message: Message, buffers: Sequence[Buffer]) -> None:
        if isinstance(message, Pong):
            self._newest_version = max(self._newest_version, message.version)
        elif isinstance(message, Limit):
            self._newest_version = max(
                [self._newest_version, *(version for _, _, version in message.grants)]
            )
        if isinstance(message, Ack):
            self.acknowledged_at = now = time.monotonic()
            welcomed, first = self.lives[-1]
            if first is None:
                self.lives[-1] = (welcomed, now)
            for stream, lo, hi in message.ranges:
                for seq in range(lo, hi):
                    if (sent := self._sent.get((stream, seq))) is not None:
                        self._latencies.add(now - sent[0])
        elif isinstance(message, Pong) and self._pings:
            self.pong_s = max(self.pong_s, time.monotonic() - self._pings.popleft())
        super().handle(message, buffers)

    def beat_frames(self) -> list[list[Payload]]:
        said = super().beat_frames()
        self._pings += [time.monotonic()] * len(said)
        return said

    def step(self, body: bytes) -> None:
        """Sends what credit, weights and the rate allow."""
        if self.run is None:
            return
        if not self._opened:
            self._opened = True
            self.open(streams=self.spec.streams, spaces=processes.SPACES)
        blob = self.take_blob()
        if blob is not None and self.spec.weights:
            self._version = blob.announce.version
            self.acts_with(self._version, blob.announce.digest)
        may_start = self.outbox.may_start
        ready = [s for s in range(self.spec.streams) if may_start(s, self._version)]
        if not ready:
            return
        if not self.spec.rate:
            for stream in ready:
                self._put(stream, body)
                while may_start(stream, self._version):  # there is credit for another
                    self._put(stream, body)
            return
        pause, now = 1 / self.spec.rate, time.monotonic()
        if self._due <= now:
            self._put(ready[0], body)
            self._due = max(self._due, now - pause) + pause
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(self._due - now, self.news.set)

    def figures(self) -> dict[str, Any]:
        settled = sum(self.outbox.outcomes.values()) - self.outbox.outcomes[Outcome.ABANDONED]
        return {
            "welcomed": self.lives[0][0] if self.lives else None,
            "lives": len(self.lives),
            "settled": settled,
            "acknowledged_at": self.acknowledged_at,
            "pong_s": self.pong_s,
        }

    def _says(self) -> dict[str, float]:
        """Reports as many figures as a real sampler does."""
        made = float(self.outbox.generated)
        return dict.fromkeys(_FIGURES, made) if made else {}

    def _put(self, stream: int, body: bytes) -> None:
        self.outbox.start(stream)
        acted = self._version if self.spec.weights else self._newest_version
        self.put(stream, FinishedUnroll((body,), (acted, acted), steps=1, digest=0))


async def _step(told: Told, body: bytes) -> None:
    """Lets the samplers go on that there is news for."""
    while True:
        await told.some.wait()
        for sampler in told.take():
            sampler.step(body)
        await asyncio.sleep(0)


async def _sample(spec: SamplersSpec) -> int:
    began, stop, latencies, told = 0.0, processes.stop_event(), Latencies(), Told()
    journal = processes.journal(spec.ledger, "actor")
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, 8 * spec.count + 64)  # far above what links use
    folder = Path(tempfile.mkdtemp(prefix="headrace-"))
    nodes = [SimulatedNode(spec, folder / f"{n}", context) for n in range(spec.nodes)]
    samplers = [
        SimulatedSampler(
            spec,
            f"simulated-{os.getpid()}-{n}",
            context,
            journal,
            latencies,
            told,
            nodes[n % spec.nodes].shelf.path if nodes else None,
        )
        for n in range(spec.count)
    ]
    for n, sampler in enumerate(samplers if nodes else []):
        nodes[n % spec.nodes].adopt(sampler)

    def write(**more: Any) -> None:
        outcomes = sum((s.outbox.outcomes for s in samplers), Counter[Outcome]())
        processes.write(
            spec.report,
            began=began,
            generated=sum(s.outbox.generated for s in samplers),
            outcomes={outcome.name.lower(): count for outcome, count in outcomes.items()},
            hellos=sum(s.hellos for s in samplers),
            versions=sum(node.fetches for node in nodes),
            weights_arrived=sum(node.arrived for node in nodes),
            latencies=latencies.counts,
            reconnects=sum(s.link.reconnects for s in samplers),
            samplers=[s.figures() for s in samplers],
            **more,
        )

    try:
        processes.write(spec.report, ready=True)
        while not spec.opened() and not stop.is_set():
            await processes.sleep(stop, 0.01)
        began = time.monotonic()
        body = os.urandom(spec.bytes)
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(one.serve(), name="link") for one in nodes or samplers]
            stepping = group.create_task(_step(told, body), name="samplers")
            while not stop.is_set():
                write()
                await processes.sleep(stop, spec.every_s)
            stepping.cancel()
            until = time.monotonic() + spec.drain_s
            while any(len(one.outbox) for one in samplers) and time.monotonic() < until:  # noqa: ASYNC110
                await asyncio.sleep(_LOOK_EVERY_S)
            for sampler in samplers:
                sampler.leave("the simulation ends")  # abandons the rest
            for node in nodes:
                node.leave("the simulation ends")
            for link in running:
                link.cancel()
        write(all_lives=[sampler.lives for sampler in samplers])
    finally:
        context.destroy(linger=500)
        journal.close()
        shutil.rmtree(folder, ignore_errors=True)
    return runtime.OK


def main(text: str) -> int:
    spec = msgspec.json.decode(text, type=SamplersSpec)
    return processes.run("samplers", lambda: _sample(spec))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
