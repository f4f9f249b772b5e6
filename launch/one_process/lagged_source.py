"""Stands in for broker and samplers, and gives the train loop batches of exactly one lag.

    next() -> credit for a batch, weights `lag` versions old -> the real Sampler plays -> batch

All is one thread: the sampler's event loop turns only while the train loop asks for a batch. So a
run with one seed is the same again. The first batches are played with version 0.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar, cast

import msgspec
from prometheus_client import CollectorRegistry

from headrace.actors.metrics import SamplerMetrics
from headrace.actors.stepping.stepper import Stepper
from headrace.broker.journal.journal import Journal
from headrace.broker.peers.learner_ends import Windows
from headrace.broker.peers.objections import Objection
from headrace.broker.peers.outbox import FinishedUnroll, Outbox
from headrace.broker.peers.sampler import SamplerEnd
from headrace.broker.protocol.messages import Ack, Deliver, Limit, Outcome
from headrace.broker.weights.blobs import Blob
from headrace.broker.weights.common_chunks import Versions
from headrace.launch.config.run_file import Run
from headrace.launch.roles import sampler
from headrace.learner.batches.batch import Batch
from headrace.learner.batches.make_batch import make_batch
from headrace.learner.models.build import build
from headrace.learner.weights import Body, layout_digest

T = TypeVar("T")


class Score(NamedTuple):
    """Holds one finished episode."""

    trained: int  # steps that the weights which acted at its end were trained on
    value: float


class LaggedSource:
    """Is the train loop's source of unrolls, and the end that its only sampler speaks with."""

    def __init__(self, run: Run, *, lag: int, seed: int) -> None:
        groups = run.actor.count * run.actor.groups
        stepping = "vector" if run.actor.stepping == "vector" else "inline"
        alone = msgspec.structs.replace(run.actor, groups=groups, stepping=stepping)
        self.scores: list[Score] = []
        self.acted = 0  # steps that the weights which act now were trained on
        self._lag = lag
        self._version, self._trained = 0, [0]  # the newest weights; by version: steps trained on
        self._bodies: dict[int, Body] = {}  # of the weights that are still to act
        self._credit, self._given = [0] * groups, 0  # by stream, and together: unrolls asked for
        # What the sampler asks of its end.
        self.news, self.over, self.waited = asyncio.Event(), "", 0
        self.blob: Blob | None = None
        self.name, self.inc, self.journal = "actor-0", 1, Journal(None, "")
        self.outbox = Outbox(inc=self.inc, streams=groups)
        end = cast(SamplerEnd, self)
        metrics = SamplerMetrics(CollectorRegistry())
        played = msgspec.structs.replace(run, actor=alone)
        self._sampler = sampler.build(end, played, seed=seed, metrics=metrics)
        self.spaces = self._sampler.stepper.spaces
        self._versions = Versions(layout_digest(build(run.model, self.spaces, seed=0)))
        unrolls = run.pacing.batch_unrolls
        self._batch = make_batch(self.spaces, run.unroll, run.model, unrolls=unrolls, pinned=False)

    @property
    def stepper(self) -> Stepper:
        return self._sampler.stepper

    def serve(self, train: Callable[[], T]) -> T:
        """Plays what `train` asks for, until it returns; raises what fails in either."""
        try:
            with asyncio.Runner() as runner:
                self._loop = runner.get_loop()
                self._sampling = self._loop.create_task(self._sampler.run(), name="sampler")
                # What it raised is taken: else asyncio would log it when the task is collected.
                self._sampling.add_done_callback(lambda task: task.cancelled() or task.exception())
                result = train()
                self.over = "trained"
                self.news.set()
                self._loop.run_until_complete(self._sampling)
            return result
        finally:
            if self._sampling.done() and not self._sampling.cancelled():
                self._sampling.exception()  # known; else asyncio logs it when it is collected
            self.stepper.close()

    # What the train loop asks of its source.

    def next(self, timeout_s: float) -> Batch | None:  # noqa: ARG002 - nothing is waited for
        """Plays a batch with the weights of `lag` versions ago."""
        played = self._loop.create_task(self._play(max(0, self._version - self._lag)))
        either = asyncio.wait({played, self._sampling}, return_when=asyncio.FIRST_COMPLETED)
        self._loop.run_until_complete(either)
        if not played.done():
            self._sampling.result()  # it failed
        return self._batch

    def publish(self, version: int, body: Body) -> None:
        self._version, self._bodies[version] = version, body
        self._bodies.pop(version - self._lag - 1, None)

    def trained(self, batch: Batch, *, version: int) -> None:
        assert version == len(self._trained), "each batch is one version"
        self._trained.append(self._trained[-1] + batch.steps)

    def reject(self, batch: Batch, places: Sequence[int], _objection: Objection, /) -> None:
        batch.drop(places)

    def refill(self, batch: Batch) -> None:
        """Does nothing: what is left of a batch that broke the step is given up."""

    def windows(self) -> Windows:
        return ()

    def stats(self, stats: dict[str, float]) -> None:
        """Does nothing: nobody watches."""

    async def _play(self, version: int) -> None:
        self._batch.clear()
        self.blob = self._versions.of(version, self._bodies[version])
        self.acted = self._trained[version]
        for _ in range(self._batch.unrolls):  # in turn
            self._credit[self._given % len(self._credit)] += 1
            self._given += 1
        self.outbox.on_limit(Limit(tuple((n, upto, 0) for n, upto in enumerate(self._credit))))
        self._full = asyncio.Event()
        self.news.set()
        await self._full.wait()

    # What the sampler asks of its end.

    def open(self, *, streams: int, spaces: tuple[str, str]) -> None:
        """Does nothing: credit is given batch by batch."""

    def take_blob(self) -> Blob | None:
        blob, self.blob = self.blob, None
        return blob

    def acts_with(self, version: int, digest: str) -> None:
        """Does nothing: a version stays until the next batch is asked for."""

    def put(self, stream: int, done: FinishedUnroll) -> None:
        """Puts an unroll into the batch, and acknowledges it."""
        self.outbox.put(stream, done)
        seq = self.outbox.last(stream)
        self.outbox.on_ack(Ack(Outcome.TRAINED, ((stream, seq, seq + 1),)))
        message = Deliver(
            tag=0,
            attempt=1,
            actor="",
            inc=1,
            stream=stream,
            seq=seq,
            floor=0,
            version_min=done.versions[0],
            version_max=done.versions[1],
            steps=done.steps,
            digest=done.digest,
            ended=done.ended,
            episodes=done.episodes,
        )
        objection = self._batch.place(message, done.buffers)
        assert objection is None, objection.words
        self.scores += [Score(self.acted, value) for _, value, _ in done.episodes]
        if not self._batch.room:
            self._full.set()
