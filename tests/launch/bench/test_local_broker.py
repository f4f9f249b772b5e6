"""The broker's stand-in of `headrace bench sampler`: a sampler plays with it as in a run."""

import asyncio
from typing import Any, cast

from prometheus_client import CollectorRegistry

from headrace.actors.metrics import SamplerMetrics
from headrace.broker.peers.sampler import SamplerEnd
from headrace.broker.weights.blobs import Blob
from headrace.launch.bench.sampler import LocalBroker
from headrace.launch.config import run_file
from headrace.launch.roles import sampler
from headrace.learner.models.build import build
from headrace.learner.weights import FlatWeights, layout_digest


class EndsSoon(LocalBroker):
    """Ends the run with its first unroll."""

    def put(self, stream: int, finished: Any) -> None:
        super().put(stream, finished)
        self.over = "that is enough"
        self.news.set()


def test_a_sampler_takes_it_for_a_broker() -> None:
    local, run = EndsSoon(), run_file.load("cartpole", ["actor.stepping=inline"])
    metrics = SamplerMetrics(CollectorRegistry())

    async def play() -> None:
        made = sampler.build(cast(SamplerEnd, local), run, seed=1, metrics=metrics)
        model = build(run.model, made.stepper.spaces, seed=1)
        local.blob = Blob.of(0, layout_digest(model), FlatWeights(model).dump())
        try:
            await made.run()
        finally:
            made.stepper.close()

    asyncio.run(play())
    assert 0 < local.steps <= run.unroll.length * run.unroll.envs and local.acting == 0
