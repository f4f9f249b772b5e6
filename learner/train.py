"""The train loop: one function, read from top to bottom. What it needs comes in by `Pieces`."""

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from learner import checkpoint
from learner.batch import Batch
from learner.config import AlgorithmConfig, CheckpointConfig, LearnerConfig
from learner.feed import Feed
from learner.frames import observed
from learner.gap import GapCheck
from learner.losses import LOSSES, LossBatch, Norm
from learner.metrics import LearnerMetrics
from learner.models.model import Model, Output
from learner.models.precision import autocast
from learner.progress import Progress
from learner.ranks import Facts, Ranks
from learner.spaces import Spaces
from learner.weights import FlatWeights

log = logging.getLogger(__name__)

# So many skipped steps in a row mean that training is over, not that one batch was bad.
_MOST_NONFINITE = 20
_GAP_EVERY = 100  # optimiser steps
_SHOW_EVERY_S = 0.25


class DivergedError(Exception):
    """Loss or gradients stay non-finite."""


@dataclass(frozen=True, slots=True)
class Goal:
    """When to stop; None = never for that reason."""

    return_: float | None
    steps: int | None
    seconds: float | None


@dataclass(slots=True)
class Pieces:
    """What launch puts together."""

    algorithm: AlgorithmConfig
    config: LearnerConfig
    saving: CheckpointConfig
    goal: Goal
    ranks: Ranks
    feed: Feed
    model: Model
    target: Model | None  # appo's target network
    gap: GapCheck | None
    progress: Progress
    metrics: LearnerMetrics
    device: torch.device
    folder: Path
    spaces: Spaces
    identity: dict[str, Any]  # what a checkpoint must fit: run and spaces
    resume: checkpoint.Checkpoint | None
    stopping: Callable[[], bool]  # somebody asked us to end
    started: float  # wall clock of the process that the user started
    first_train_s: float | None = None


def train(p: Pieces) -> str:
    """Trains until the goal, a limit, or a request to stop; returns which. Ends with a checkpoint.

    Consumes batches, produces versions. Waits for a batch; a request to stop is seen within half a
    second.
    """
    torch.manual_seed(p.ranks.rank)
    flat = FlatWeights(p.model)
    version = p.progress.version
    publish(p, flat, version)  # samplers begin while the optimiser is still being made
    network: nn.Module = p.model
    if p.ranks.world > 1:
        devices = [p.device.index] if p.device.type == "cuda" else None
        network = nn.parallel.DistributedDataParallel(p.model, device_ids=devices)
    fused = p.device.type == "cuda"
    optimiser = torch.optim.Adam(
        p.model.parameters(), lr=p.config.lr, eps=p.config.adam_eps,
        foreach=not fused, fused=fused,
    )  # fmt: skip
    if p.resume is not None:
        restore(p, optimiser)
    loss_of = LOSSES[p.algorithm.name]
    upload = Upload(p.device)
    saved_at = shown_at = began = time.monotonic()
    nonfinite_in_a_row = 0
    batch: Batch | None = None
    p.progress.mark(time.monotonic())

    while True:
        # 1. A batch, and everybody else's word that they have one too.
        waiting = time.perf_counter()
        batch = batch or p.feed.next(timeout_s=0.5)
        now = time.monotonic()
        facts = p.ranks.exchange(_facts(p, batch, save=now - saved_at > p.saving.every_s))
        p.metrics.phase["wait"].inc(time.perf_counter() - waiting)
        if facts.stop or facts.late:
            reason = "seconds" if facts.late else "stopped"
            break
        if not facts.ready or batch is None:
            continue

        # 2. Forward, backward, step.
        began_step = time.perf_counter()
        tensors = upload(batch)
        uploaded = time.perf_counter()
        lr = anneal(p.config, p.progress.trained_steps)
        for group in optimiser.param_groups:
            group["lr"] = lr
        obs = observed(tensors, p.spaces)
        with autocast(p.device.type, p.config.precision, p.model):
            output: Output = network(obs)
            with torch.no_grad():
                target = p.target(obs) if p.target is not None else None
        loss = loss_of(
            p.algorithm,
            output=output,
            batch=LossBatch(*(tensors[k] for k in ("action", "logp", "reward", "flags"))),
            target=target,
            norm=Norm(steps=max(1, facts.steps), world=p.ranks.world, reduce=p.ranks.total),
        )
        optimiser.zero_grad(set_to_none=True)
        p.ranks.collective(loss.total.backward)
        grad_norm = nn.utils.clip_grad_norm_(
            p.model.parameters(), p.config.grad_clip or float("inf")
        )
        # The gradients are the same on every rank by now, so every rank decides alike.
        if not bool(torch.isfinite(grad_norm)):
            nonfinite_in_a_row += 1
            skip(p, batch, tensors, in_a_row=nonfinite_in_a_row)
            batch = None
            continue
        nonfinite_in_a_row = 0
        optimiser.step()
        version += 1
        trained = time.perf_counter()

        # 3. Weights out, outcomes back, counters on.
        publish(p, flat, version)
        lags = [version - 1 - low for low, _ in batch.versions]
        p.progress.step(version=version, steps=facts.steps, lags=lags)
        p.progress.saw(facts.ended, facts.episodes)
        if p.target is not None and p.progress.learner_steps % p.algorithm.target_interval == 0:
            p.target.load_state_dict(p.model.state_dict())
        if p.gap is not None and p.progress.learner_steps % _GAP_EVERY == 1:
            gap = p.gap.measure(tensors, batch.versions)
            if gap is not None:
                p.metrics.gap.set(gap)
        p.feed.trained(batch, version=version)
        batch = None
        if p.first_train_s is None:
            p.first_train_s = time.time() - p.started
            p.progress.mark(now)
        _count(p, facts, lags, began_step, uploaded, trained)
        if now - shown_at > _SHOW_EVERY_S:
            shown_at = now
            p.progress.mark(now)
            show(
                p,
                {k: float(v) for k, v in loss.stats.items()}
                | {"grad_norm": float(grad_norm), "lr": lr},
            )
        if p.progress.reached(p.goal.return_):
            if p.progress.solved_at_s is None:
                p.progress.solved_at_s = time.time() - p.started
                p.progress.solved_at_steps = p.progress.trained_steps
            reason = "return"
            break
        if p.goal.steps is not None and p.progress.trained_steps >= p.goal.steps:
            reason = "steps"
            break
        if facts.save:
            saved_at = now
            save(p, optimiser)

    # A batch that is left is still leased: our goodbye hands it back untouched.
    p.progress.mark(time.monotonic())
    show(p, {})
    save(p, optimiser)
    log.info(
        "trained %d steps in %.1f s: %s", p.progress.trained_steps, time.monotonic() - began, reason
    )
    return reason


class Upload:
    """A batch to the device. On a GPU by a stream of its own, from pinned memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        if self._stream is None:
            return batch.tensors
        with torch.cuda.stream(self._stream):
            out = {
                name: tensor.to(self._device, non_blocking=True)
                for name, tensor in batch.tensors.items()
            }
        current = torch.cuda.current_stream(self._device)
        current.wait_stream(self._stream)
        for tensor in out.values():
            tensor.record_stream(current)
        return out


def anneal(config: LearnerConfig, trained_steps: int) -> float:
    """The step size now."""
    if not config.anneal_steps:
        return config.lr
    return config.lr * max(0.0, 1.0 - trained_steps / config.anneal_steps)


def publish(p: Pieces, flat: FlatWeights, version: int) -> None:
    """A copy of the weights goes to the receiver thread, which hashes and sends it."""
    if p.ranks.rank == 0:
        before = time.perf_counter()
        body = flat.dump()
        p.feed.publish(version, body)
        if p.gap is not None:
            p.gap.published(version, body)
        p.metrics.phase["publish"].inc(time.perf_counter() - before)


def skip(p: Pieces, batch: Batch, tensors: dict[str, Tensor], *, in_a_row: int) -> None:
    """No step: the gradients are not finite. The first few such batches are kept for a look."""
    p.metrics.nonfinite.labels("gradient").inc()
    p.progress.nonfinite += 1
    kept = p.folder / "nonfinite" / f"{p.progress.nonfinite:04d}-rank{p.ranks.rank}.safetensors"
    if p.progress.nonfinite <= 3:
        kept.parent.mkdir(parents=True, exist_ok=True)
        save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, kept)
    log.error("non-finite gradients: step skipped, batch kept in %s", kept.parent)
    p.feed.reject(batch, "non-finite gradients")
    if in_a_row >= _MOST_NONFINITE:
        raise DivergedError(
            f"{in_a_row} steps in a row had non-finite gradients; lower learner.lr or"
            f" learner.grad_clip, and look at {kept.parent}"
        )


def save(p: Pieces, optimiser: torch.optim.Optimizer) -> None:
    """Everything that a restart needs. All ranks take part: each knows what it trained."""
    before = time.perf_counter()
    windows: list[Any] = []
    for packed in p.ranks.gather(msgpack.packb([_plain(w) for w in p.feed.windows()])):
        windows += msgpack.unpackb(packed)
    if p.ranks.rank == 0:
        tensors, meta = checkpoint.optimiser_state(optimiser)
        groups = {"model": dict(p.model.state_dict()), "optimiser": tensors}
        groups["rng"] = checkpoint.rng_state()
        if p.target is not None:
            groups["target"] = dict(p.target.state_dict())
        state = {
            "identity": p.identity,
            "progress": p.progress.state(),
            "optimiser": meta,
            "windows": windows,
        }
        try:
            checkpoint.save(
                p.folder / "checkpoints", step_version=p.progress.version, tensors=groups,
                state=state, keep=p.saving.keep,
            )  # fmt: skip
            p.metrics.checkpoints.labels("ok").inc()
            p.metrics.last_checkpoint.set(time.time())
        except checkpoint.CheckpointError as error:
            # The one before still stands; an operator must make room, training need not stop.
            p.metrics.checkpoints.labels("failed").inc()
            log.error("%s", error)
    p.metrics.phase["checkpoint"].inc(time.perf_counter() - before)


def restore(p: Pieces, optimiser: torch.optim.Optimizer) -> None:
    """Optimiser, target network and dice; the model and the counters are back already."""
    assert p.resume is not None
    tensors, state = p.resume.tensors, p.resume.state
    checkpoint.restore_optimiser(optimiser, tensors["optimiser"], state["optimiser"])
    if p.target is not None:
        p.target.load_state_dict(tensors["target"])
    checkpoint.restore_rng(tensors["rng"])


def show(p: Pieces, stats: dict[str, float]) -> None:
    """Numbers for people: metrics, the run's history, whoever watches."""
    p.metrics.show(p.progress, stats, time.time())
    mean = p.progress.mean_return()
    line = {
        "t": round(time.time() - p.started, 3),
        "version": p.progress.version,
        "trained_steps": p.progress.trained_steps,
        "episodes": p.progress.episodes,
        "mean_return": mean,
        "lag": p.progress.lag()["mean"],
        **{name: round(value, 6) for name, value in stats.items()},
    }
    p.feed.stats({name: float(value) for name, value in line.items() if value is not None})
    if p.ranks.rank == 0:
        try:
            with (p.folder / "history.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:  # a full disk must not stop the run
            log.error("a line of the history is missing: %s", error)


def _facts(p: Pieces, batch: Batch | None, *, save: bool) -> Facts:
    stop = p.stopping()
    late = p.goal.seconds is not None and time.time() - p.started >= p.goal.seconds
    if batch is None:
        return Facts(False, stop, late, save)
    return Facts(True, stop, late, save, batch.steps, batch.ended, tuple(batch.episodes))


def _count(
    p: Pieces, facts: Facts, lags: list[int], began: float, uploaded: float, trained: float
) -> None:
    p.metrics.steps.inc()
    p.metrics.samples.inc(facts.steps)
    p.metrics.phase["upload"].inc(uploaded - began)
    p.metrics.phase["train"].inc(trained - uploaded)
    p.metrics.step_seconds.observe(trained - began)
    for lag in lags:
        p.metrics.lag.observe(lag)


def _plain(window: Any) -> list[Any]:
    inc, stream, spans = window
    return [inc, stream, [list(span) for span in spans]]
