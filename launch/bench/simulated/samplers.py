"""A process of many simulated samplers: real ends and sockets, no environments, no network."""

import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
# About the figures of a real sampler: failures and most buckets are 0, and zeros are not sent.
_FIGURES = [
    name
    for metric in (*COUNTERS, HISTOGRAMS[0])
    if metric.metric != "env_failures"
    for name in metric.names()
]
_MOST_LIVES = 4096  # broker incarnations that one sampler records


class SimulatedSampler(SamplerEnd):
    """Wraps a real end and records times of events, by the clock that all processes share."""

    def __init__(
        self,
        spec: SamplersSpec,
        name: str,
        context: "zmq.Context[zmq.Socket[bytes]]",
        journal: Journal,
        latencies: Latencies,
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
        self.hellos = 0
        # For each broker incarnation: when it welcomed us, and acknowledged first; None = never.
        self.lives: list[tuple[float, float | None]] = []
        self.acknowledged_at = 0.0  # the last time
        self.pong_s = 0.0  # the longest from a PING to its PONG
        self._pings: deque[float] = deque()  # when the unanswered ones were sent
        self._welcomed_by = 0  # broker incarnation of the latest entry in lives
        self._newest_version = 0  # the newest version that the broker spoke of
        self._latencies = latencies
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

    async def sample(self, body: bytes, stop: asyncio.Event) -> None:
        """Sends what credit, weights and the rate allow, until told to stop."""
        while self.run is None and not stop.is_set():
            self.news.clear()
            await self.news.wait()
        self.open(streams=self.spec.streams, spaces=processes.SPACES)
        version = -1 if self.spec.weights else _ANY_VERSION
        pause = 1 / self.spec.rate if self.spec.rate else 0.0
        due = time.monotonic()
        while not stop.is_set():
            blob = self.take_blob()
            if blob is not None and self.spec.weights:
                version = blob.announce.version
                self.acts_with(version, blob.announce.digest)
            ready = [s for s in range(self.spec.streams) if self.outbox.may_start(s, version)]
            wait_s = due - time.monotonic()
            if ready and wait_s <= 0:
                for stream in ready[:1] if pause else ready:
                    self._put(stream, version, body)
                due = max(due, time.monotonic() - pause) + pause
                await asyncio.sleep(0)
            else:
                await self._rest(wait_s if ready else 0.0)

    async def drain(self, until: float) -> None:
        """Waits until all open unrolls are acknowledged or time is up, then leaves and abandons the
        rest."""
        while len(self.outbox) and time.monotonic() < until:
            await self._rest(until - time.monotonic())
        self.leave("the simulation ends")

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

    def _put(self, stream: int, version: int, body: bytes) -> None:
        self.outbox.start(stream)
        acted = version if self.spec.weights else self._newest_version
        self.put(stream, FinishedUnroll((body,), (acted, acted), steps=1, digest=0))

    async def _rest(self, most_s: float) -> None:
        """Waits for news for at most this long; 0 = without a limit."""
        self.news.clear()
        timer = None
        if most_s > 0:
            timer = asyncio.get_running_loop().call_later(most_s, self.news.set)
        await self.news.wait()
        if timer is not None:
            timer.cancel()


async def _sample(spec: SamplersSpec) -> int:
    began, stop, latencies = 0.0, processes.stop_event(), Latencies()
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
        async with asyncio.TaskGroup() as link_group:
            speaking = [s.weights.poll_shelf(s.news) for s in samplers if nodes]
            speaking += [one.serve() for one in nodes or samplers]
            running = [link_group.create_task(one, name="link") for one in speaking]
            async with asyncio.TaskGroup() as group:
                for sampler in samplers:
                    group.create_task(sampler.sample(body, stop), name="sampler")
                while not stop.is_set():
                    write()
                    await processes.sleep(stop, spec.every_s)
                for sampler in samplers:
                    sampler.news.set()
            until = time.monotonic() + spec.drain_s
            async with asyncio.TaskGroup() as group:
                for sampler in samplers:
                    group.create_task(sampler.drain(until), name="drain")
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
