"""A process with one simulated learner: real ends that report each batch as trained."""

import asyncio
import sys
from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any

import msgspec
import zmq

from headrace.broker.journal.journal import Journal
from headrace.broker.peers.inbox import Key
from headrace.broker.peers.learner import LearnerEnd
from headrace.broker.peers.learner_ends import LearnerEnds
from headrace.broker.peers.objections import Objection
from headrace.broker.protocol.hello_payload import HelloPayload
from headrace.broker.protocol.messages import Deliver, Hello, Payload
from headrace.broker.transport import several
from headrace.broker.weights.blobs import Blob
from headrace.launch.bench.simulated import processes
from headrace.launch.config import run_file, shared_run
from headrace.launch.process import runtime


class SimulatedLearner:
    """Simulates a learner: it collects batches, counts steps and publishes weights."""

    def __init__(
        self,
        spec: processes.LearnerSpec,
        context: "zmq.Context[zmq.Socket[bytes]]",
        journal: Journal,
    ) -> None:
        run = run_file.load(spec.run)
        pacing, (digest, words) = run.pacing, processes.SPACES
        inc, name = runtime.incarnation(), run.run.name
        hello = Hello("learner", "simulated", inc, run=name, spaces=digest)
        intro = HelloPayload(
            shared=shared_run.shared(run),
            spaces=words,
            unroll_bytes=spec.bytes,
            brokers=run.broker.shards,
        )
        room = pacing.batch_unrolls * (pacing.max_lag + 1) * run.broker.shards
        self.spec = spec
        self.steps = 0
        self.version = 0
        self._size = pacing.batch_unrolls
        self._batch: list[Key] = []  # unrolls held, the oldest first
        self._full = asyncio.Event()  # set when a whole batch is there
        self.ends = LearnerEnds(
            [partial(LearnerEnd, at, hello, intro) for at in several.addresses(spec.broker)],
            rank=0,
            world=1,
            batch=pacing.batch_unrolls,
            room=lambda: room - len(self._batch),
            accept=self._take,
            journal=journal,
            context=context,
            key=processes.key(spec.key, "learner"),
        )
        self.ends.begins(0, ())

    async def train(self) -> None:
        """Trains until cancelled."""
        while (version := self.ends.welcome_version) is None:  # noqa: ASYNC110  # once
            await asyncio.sleep(0.01)
        self.version = version
        self._publish()
        while True:
            self._full.clear()
            if len(self._batch) < self._size:
                await self._full.wait()
            await asyncio.sleep(self.spec.delay_s)
            batch, self._batch = self._batch[: self._size], self._batch[self._size :]
            self.steps += 1
            self.version += 1
            self.ends.trained(batch, version=self.version)
            self._publish()

    def figures(self) -> dict[str, Any]:
        return {
            "trained": self.steps * self._size,
            "version": self.version,
            "held": len(self._batch),
            "reconnects": self.ends.reconnects,
        }

    def _take(self, message: Deliver, buffers: Sequence[Payload]) -> Objection | None:
        if len(buffers) != 1 or len(buffers[0]) != self.spec.bytes:
            words = f"not the {self.spec.bytes} bytes that the samplers send"
            return Objection("damaged", words)
        self._batch.append((message.inc, message.stream, message.seq))
        if len(self._batch) >= self._size:
            self._full.set()
        return None

    def _publish(self) -> None:
        if self.spec.weights_bytes:
            # All of it is another at every version: nothing to gain by sending what changed.
            body = Random(self.version).randbytes(8 + self.spec.weights_bytes)
            self.ends.publish(Blob.of(self.version, "simulated", body))


async def _learn(spec: processes.LearnerSpec) -> int:
    stop = processes.stop_event()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    journal = processes.journal(spec.ledger, "learner")
    try:
        learner = SimulatedLearner(spec, context, journal)
        async with asyncio.TaskGroup() as group:
            links = group.create_task(learner.ends.run(), name="links")
            steps = group.create_task(learner.train(), name="steps")
            while not stop.is_set():
                processes.write(spec.report, **learner.figures())
                await processes.sleep(stop, spec.every_s)
            steps.cancel()
            learner.ends.leave(final=False, text="the simulation ends")
            links.cancel()
        processes.write(spec.report, **learner.figures())
    finally:
        context.destroy(linger=500)
        journal.close()
    return runtime.OK


def main(text: str) -> int:
    spec = msgspec.json.decode(text, type=processes.LearnerSpec)
    return processes.run("learner", lambda: _learn(spec))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
