"""The time of a single sampler of a run, step by step.

The network has its initial weights, and the broker is replaced by one that always gives credit and
acknowledges at once: this measures everything that a sampler does except the sockets.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Any, cast

import uvloop
from prometheus_client import CollectorRegistry

from headrace.actors.metrics import SamplerMetrics
from headrace.actors.sampler import Sampler
from headrace.actors.stepping.step_cost import StepCost
from headrace.broker.journal.journal import Journal
from headrace.broker.peers.outbox import FinishedUnroll, Outbox
from headrace.broker.peers.sampler import SamplerEnd
from headrace.broker.protocol.messages import Ack, Limit, Outcome
from headrace.broker.weights.blobs import Blob
from headrace.launch.bench import ideal, output
from headrace.launch.config import run_file
from headrace.launch.process import runtime
from headrace.launch.roles import sampler as actor
from headrace.learner.models.build import build
from headrace.learner.weights import FlatWeights, layout_digest

_FOREVER = 1 << 50
_STEPPINGS = {
    "InlineStepper": "inline",
    "ThreadStepper": "threads",
    "ProcessStepper": "processes",
    "EnvPoolStepper": "pool",
}


class LocalBroker:
    """Stands in for the broker: gives unlimited credit and acknowledges every unroll at once."""

    def __init__(self) -> None:
        self.name, self.inc, self.journal = "actor-0", 1, Journal(None, "")
        self.news = asyncio.Event()
        self.outbox = Outbox(inc=self.inc, streams=0)
        self.blob: Blob | None = None
        self.over = ""  # set when the time is up
        self.acting, self.digest, self.waited = -1, "", 0
        self.bytes_sent = 0
        self.steps = 0
        self.stats: dict[str, float] = {}

    def open(self, *, streams: int, spaces: tuple[str, str]) -> None:
        self.spaces = spaces  # their digest, and words
        self.outbox = Outbox(inc=self.inc, streams=streams)
        self.outbox.on_limit(Limit(tuple((n, _FOREVER, 0) for n in range(streams))))

    def put(self, stream: int, finished: FinishedUnroll) -> None:
        frames = self.outbox.put(stream, finished)
        self.bytes_sent += sum(len(frame) for frame in frames)
        self.steps += finished.steps
        seq = self.outbox.last(stream)
        self.outbox.on_ack(Ack(Outcome.TRAINED, ((stream, seq, seq + 1),)))

    def take_blob(self) -> Blob | None:
        blob, self.blob = self.blob, None
        return blob

    def acts_with(self, version: int, digest: str) -> None:
        self.acting, self.digest = version, digest


def bench(name: str, sets: Sequence[str] = (), *, seconds: float = 15.0) -> dict[str, Any]:
    """Measures one sampler; the first third of the time is warm-up."""
    run = run_file.load(name, sets)
    if run.env.agents:
        raise run_file.ConfigError(
            f"{name}: env.agents: what a part of the agents could reach is not known; measure all"
        )
    runtime.keep_memory()
    output.parameters(
        run=name,
        env=run.env.id,
        stepping=run.actor.stepping,
        groups=run.actor.groups,
        envs=run.unroll.envs,
        length=run.unroll.length,
        seconds=seconds,
        sets=" ".join(sets),
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        figures = runner.run(_measure(run, seconds, ideal.env_cost(run.env, run.run.seed)))
    output.result("sampler", {"run": name, **figures})
    return figures


async def _measure(run: run_file.Run, seconds: float, cost: StepCost | None) -> dict[str, Any]:
    local = LocalBroker()
    metrics = SamplerMetrics(CollectorRegistry())
    sampler = actor.build(cast(SamplerEnd, local), run, seed=run.run.seed, metrics=metrics)
    model = build(run.model, sampler.stepper.spaces, seed=run.run.seed)
    local.blob = Blob.of(0, layout_digest(model), FlatWeights(model).dump())
    marks: list[dict[str, float]] = []

    async def watch() -> None:
        for pause in (seconds / 3, seconds * 2 / 3):
            await asyncio.sleep(pause)
            marks.append(_mark(local, metrics))
        local.over = "the time is up"
        local.news.set()

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(watch(), name="watch")
            await sampler.run()
    finally:
        sampler.stepper.close()
    before, after = marks
    spent = {name: after[name] - before[name] for name in before}
    return figures(sampler, spent, cost, cores=ideal.cores_of(run))


def figures(
    sampler: Sampler, spent: dict[str, float], cost: StepCost | None, *, cores: int
) -> dict[str, Any]:
    """Returns microseconds of this process per step, and the fraction of what the environments
    could reach by the cost of one alone, or where that is unknown by the time they took here."""
    steps = max(1.0, spent["steps"])
    stepper = sampler.stepper
    frame, beside = stepper.frame, stepper.beside > 0
    cost = cost or StepCost(spent["env_s"] / steps, 1.0)
    per_s = spent["steps"] / spent["wall_s"]
    most = ideal.steps_per_s(
        frame.groups * frame.envs // frame.turns,
        step_s=cost.seconds,
        computes=cost.computes,
        cores=cores,
        inference_s=spent["inference_s"] / steps,
    )
    waits = {name: spent[f"wait_{name}_s"] for name in ("env", "gather", "credit", "weights")}
    # The main thread's share; environments in other threads, and their replies, are left out.
    own = spent["inference_s"] - spent["replies_s"]
    known = sum(waits.values()) + own + (0.0 if beside else spent["env_s"])
    handover = spent["wall_s"] - known
    busy = spent["env_s"] + spent["inference_s"]
    return {
        "stepping": _STEPPINGS[type(stepper).__name__],
        "at_a_time": max(1, stepper.beside),
        "steps_per_s": round(per_s, 1),
        "ideal_per_s": round(most, 1),
        "env_us": round(spent["env_s"] / steps * 1e6, 2),
        "inference_us": round(spent["inference_s"] / steps * 1e6, 2),
        "waiting_us": {name: round(s / steps * 1e6, 2) for name, s in waits.items()},
        "handover_us": round(handover / steps * 1e6, 2),
        "handover_over_env_and_inference": round(handover / busy, 4),
        "rows_per_call": round(spent["rows"] / max(1.0, spent["calls"]), 2),
        "bytes_per_step": round(spent["bytes"] / steps, 1),
        "raw_image_bytes": sum(leaf.nbytes for leaf in stepper.spaces.observation),
        "fraction_of_ideal": round(per_s / most, 4),
    }


def _mark(local: LocalBroker, metrics: SamplerMetrics) -> dict[str, float]:
    return {
        **metrics.costs(),
        "wall_s": time.monotonic(),
        "steps": float(local.steps),
        "bytes": float(local.bytes_sent),
    }
