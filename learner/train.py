"""The train loop: one function, read from top to bottom. What it needs comes in by `Pieces`."""

import functools
import inspect
import json
import logging
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headrace.learner.algorithms import optimiser_step, schedule
from headrace.learner.algorithms.batch_uses import Sample, uses_of, with_targets
from headrace.learner.algorithms.loss_inputs import Loss, Norm, Now, Targets
from headrace.learner.algorithms.losses import LOSSES, adapted, live_steps, ppo_targets
from headrace.learner.batches.batch import Batch
from headrace.learner.batches.upload import Upload, sample_of
from headrace.learner.culprits import Inquest, without
from headrace.learner.models.gaussians import LOG_STD
from headrace.learner.models.model import Output
from headrace.learner.models.normalise import moments
from headrace.learner.models.precision import autocast
from headrace.learner.pieces import Pieces
from headrace.learner.progress import ProgressLines
from headrace.learner.ranks import Facts
from headrace.learner.train_state import append, restore, save
from headrace.learner.weights import FlatWeights

log = logging.getLogger(__name__)

_GAP_EVERY = 100  # versions
_SHOW_EVERY_S = 0.25


def train(p: Pieces) -> str:
    """Trains until the goal, a limit, or a request to stop; returns which. Ends with a checkpoint.

    Consumes batches, produces versions. Waits for a batch; a request to stop is seen within half a
    second.
    """
    flat = FlatWeights(p.model)
    version = p.progress.version
    torch.manual_seed(((p.seed * 1009 + p.ranks.rank) * 1_000_003 + version) % 2**63)
    publish(p, flat, version)  # samplers begin while the optimiser is still being made
    network: nn.Module = p.model
    if p.ranks.world > 1:
        devices = [p.device.index] if p.device.type == "cuda" else None
        # Buffers are moved by every rank alike; there is nothing to send. torch 2.13 renames this.
        ddp: Any = nn.parallel.DistributedDataParallel
        renamed = "forward_sync_buffers" in inspect.signature(ddp).parameters
        still = {"forward_sync_buffers" if renamed else "broadcast_buffers": False}
        network = ddp(p.model, device_ids=devices, **still)
    optimiser = optimiser_step.make(p.config, p.model, lr=schedule.at(p.config.lr, 0))
    if p.resume is not None:
        restore(p, optimiser)
    parameters = list(p.model.parameters())  # looking them up takes longer than clipping them
    loss_of, uses, upload = LOSSES[p.algorithm.name], uses_of(p.algorithm), Upload(p.device)
    saved_at = shown_at = began = time.monotonic()
    inquest = Inquest(p)
    batch: Batch | None = None
    p.progress.mark(time.monotonic())
    lines = ProgressLines(
        p.config.progress_s if p.ranks.rank == 0 else 0.0,
        steps=p.goal.steps,
        progress=p.progress,
        at=p.clock(),
    )

    while True:
        # 1. A batch, and everybody else's word that they have one too.
        waiting = time.perf_counter()
        batch = batch or p.feed.next(timeout_s=0.5)
        now = time.monotonic()
        due = {"save": now - saved_at > p.saving.every_s, "show": now - shown_at > _SHOW_EVERY_S}
        facts = p.ranks.exchange(_facts(p, batch, **due))
        p.metrics.phase["wait"].inc(time.perf_counter() - waiting)
        if facts.stop or facts.late:
            reason = "seconds" if facts.late else "stopped"
            break
        lines.look(p.progress, p.clock())
        if not facts.ready or batch is None:
            continue

        # 2. Forward, backward, step: once, or as often as the algorithm uses its batches.
        began_step = time.perf_counter()
        tensors = upload(batch)
        fresh = sample_of(tensors, p.spaces, previous=p.previous, unrolls=batch.unrolls)
        uploaded = time.perf_counter()
        lr = schedule.at(p.config.lr, p.progress.trained_steps)
        for group in optimiser.param_groups:
            group["lr"] = lr
        taken, broken, vs = 0, None, None
        made: list[Targets] = []  # by ppo, of the whole batch
        whole = Norm(steps=max(1, facts.steps), world=p.ranks.world, reduce=p.ranks.total)
        for sample in uses.samples(fresh, functools.partial(targets_of, p, made, norm=whole)):
            forward = time.perf_counter()
            with autocast(p.device.type, p.config.precision, p.model):
                output: Output = network(sample.obs, sample.memory, sample.begins)
                target = forward_target(p, sample)
            loss = loss_of(
                p.algorithm,
                numbers_now(p),
                distribution=p.model.distribution,
                output=output,
                batch=sample.loss,
                target=target,
                norm=whole if sample is fresh else norm_of(p, sample),
            )
            backward = time.perf_counter()
            optimiser.zero_grad(set_to_none=True)
            p.ranks.collective(loss.total.backward)  # the ranks' gradients are averaged meanwhile
            optimise_from = time.perf_counter()
            p.metrics.phase["forward"].inc(backward - forward)
            p.metrics.phase["backward"].inc(optimise_from - backward)
            grad_norm = optimiser_step.clip(p.config, parameters)
            # The gradients are the same on every rank by now, so every rank decides alike.
            if not bool(torch.isfinite(grad_norm)):
                broken = sample
                break
            optimiser.step()
            taken += 1
            p.metrics.phase["optimise"].inc(time.perf_counter() - optimise_from)
            stepped, norm_before = loss, grad_norm
            vs = loss.vs if vs is None else vs
            p.progress.used(sample.unrolls * p.ranks.world)  # the others have taken as many
            if after_step(p, loss):
                break
        vs = made[0].vs if made else vs
        if broken is None:
            inquest.stepped()
        else:
            fresh = fresh.copy()  # what is rejected leaves the batch, whose memory this may be
            alone = functools.partial(loss_alone, p, whole=whole)
            verdict = inquest.look(batch, fresh, broken, alone, used=taken > 0)
            if not taken:
                if verdict.places:
                    p.feed.refill(batch)
                    batch = None
                continue
            if verdict.anywhere:
                facts = p.ranks.exchange(_facts(p, batch, save=facts.save, show=facts.show))
                vs = without(fresh, vs, verdict.places, batch.unrolls)
        update_statistics(p, fresh, vs)
        version += 1
        trained = time.perf_counter()

        # 3. Weights out, outcomes back, counters on.
        publish(p, flat, version)
        own_lags = _lags(p, batch)
        p.progress.step(version=version, steps=facts.steps, lags=dict(facts.lags))
        p.progress.saw(facts.ended, facts.ends)
        if p.gap is not None and broken is None and version % _GAP_EVERY == 1:
            gap = p.gap.measure(tensors, batch.versions)
            if gap is not None:
                p.metrics.gap.set(gap)
        p.feed.trained(batch, version=version)
        batch = None
        if p.first_train_s is None:
            p.first_train_s = time.monotonic() - p.started
            p.progress.mark(now)
        _count(p, facts, own_lags, began_step, uploaded, trained)
        if facts.show:  # all ranks do: what is shown is of all of them
            shown_at = now
            p.progress.mark(now)
            show(p, everywhere(p, stepped.stats) | {"grad_norm": float(norm_before), "lr": lr})
        if p.progress.reached(p.goal.return_):
            if p.progress.solved_at_s is None:
                p.progress.solved_at_s = p.clock()
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


def numbers_now(p: Pieces) -> Now:
    """Returns what schedules, adaptation and statistics make of the config at this step."""
    steps, algorithm = p.progress.trained_steps, p.algorithm
    adapting = algorithm.kl_target > 0
    return Now(
        clip=schedule.at(algorithm.clip, steps),
        entropy_coef=schedule.at(algorithm.entropy_coef, steps),
        kl_coef=algorithm.kl_coef if not adapting else p.progress.kl_coef or algorithm.kl_coef,
        std=1.0 if p.model.returns is None else p.model.returns.std.float(),
    )


@torch.no_grad()
def targets_of(p: Pieces, made: list[Targets], sample: Sample, *, norm: Norm) -> Targets:
    """Computes ppo's targets, with the network as it is now."""
    with autocast(p.device.type, p.config.precision, p.model):
        output: Output = p.model(sample.obs, sample.memory, sample.begins)
    numbers = numbers_now(p)
    made.append(ppo_targets(p.algorithm, numbers, output=output, batch=sample.loss, norm=norm))
    return made[-1]


def loss_alone(p: Pieces, part: Sample, *, whole: Norm) -> Tensor:
    """Returns what some unrolls of a batch add to its loss, without any other rank."""
    norm = Norm(steps=whole.steps, world=whole.world)
    if p.algorithm.name == "ppo":
        part = with_targets(part, functools.partial(targets_of, p, [], norm=norm))
    with autocast(p.device.type, p.config.precision, p.model):
        output: Output = p.model(part.obs, part.memory, part.begins)
        target = forward_target(p, part)
    return LOSSES[p.algorithm.name](
        p.algorithm,
        numbers_now(p),
        distribution=p.model.distribution,
        output=output,
        batch=part.loss,
        target=target,
        norm=norm,
    ).total


@torch.no_grad()
def forward_target(p: Pieces, sample: Sample) -> Output | None:
    if p.target is None:
        return None
    output: Output = p.target(sample.obs, sample.memory, sample.begins)
    return output


def norm_of(p: Pieces, sample: Sample) -> Norm:
    """Counts the live steps of a sample that is not a fresh batch."""
    steps = p.ranks.total(live_steps(sample.loss.flags).sum()).clamp(min=1)
    return Norm(steps=steps, world=p.ranks.world, reduce=p.ranks.total)


def after_step(p: Pieces, loss: Loss) -> bool:
    """Does what follows every optimiser step; True = the batch has moved the policy far enough."""
    progress, algorithm = p.progress, p.algorithm
    progress.learner_steps += 1
    if p.model.log_std is not None:
        p.model.log_std.data.clamp_(*LOG_STD)  # so that its way back is never long
    if p.target is not None and progress.learner_steps % algorithm.target_interval == 0:
        # Measured where the target is oldest: just after a move the two are equal.
        if algorithm.kl_target and "target_kl" in loss.stats:
            coef = algorithm.kl_coef if progress.kl_coef is None else progress.kl_coef
            kl = _everywhere(p, loss.stats["target_kl"])
            progress.kl_coef = adapted(coef, kl, algorithm.kl_target)
        optimiser_step.follow(p.target, p.model, algorithm.target_rate)
    if algorithm.kl_stop and algorithm.name == "ppo":
        return _everywhere(p, loss.stats["kl"]) > algorithm.kl_stop
    return False


def update_statistics(p: Pieces, fresh: Sample, vs: Tensor | None) -> None:
    """Updates them once for each batch, only from what is new in it, however often it was used."""
    flags, normaliser, returns = fresh.loss.flags, p.model.normaliser, p.model.returns
    live = live_steps(flags)
    if normaliser is not None:
        normaliser.update(fresh.obs, live, p.ranks.total)
    if returns is not None and vs is not None:
        new = vs[:, : flags.shape[1]].unsqueeze(-1)
        returns.merge(moments(new, live, p.ranks.total))


def _everywhere(p: Pieces, stat: Tensor) -> float:
    """Returns a statistic's mean over the ranks."""
    return float(p.ranks.total(stat.clone())) / p.ranks.world


def everywhere(p: Pieces, stats: dict[str, Tensor]) -> dict[str, float]:
    """Returns each statistic's mean over the ranks: their parts are shares of the whole batch's."""
    means = p.ranks.total(torch.stack(list(stats.values()))) / p.ranks.world
    return dict(zip(stats, means.tolist(), strict=True))


def publish(p: Pieces, flat: FlatWeights, version: int) -> None:
    """Copies the weights for the receiver thread, which hashes and sends them."""
    if p.ranks.rank == 0:
        before = time.perf_counter()
        body = flat.dump()
        p.feed.publish(version, body)
        if p.gap is not None:
            p.gap.published(version, body)
        p.metrics.phase["publish"].inc(time.perf_counter() - before)


def show(p: Pieces, stats: dict[str, float]) -> None:
    """Shows numbers to people: in metrics, the run's history, and to those who watch."""
    p.metrics.show(p.progress, stats, time.time())
    mean = p.progress.mean_return()
    line = {
        "t": round(p.clock(), 3),
        "version": p.progress.version,
        "trained_steps": p.progress.trained_steps,
        "episodes": p.progress.episodes,
        "mean_return": mean,
        "lag": p.progress.lag()["mean"],
        **{name: round(value, 6) for name, value in stats.items()},
    }
    p.feed.stats({name: float(value) for name, value in line.items() if value is not None})
    if p.ranks.rank == 0:
        if news := p.progress.score.news():
            log.warning(news)
        try:
            append(p.folder / "history.jsonl", json.dumps(line))
            p.history_gap = False
        except OSError as error:  # a full disk must not stop the run
            if not p.history_gap:
                log.error("the history has a gap from here: %s", error)
            p.history_gap = True


def _facts(p: Pieces, batch: Batch | None, *, save: bool, show: bool) -> Facts:
    stop = p.stopping()
    late = p.goal.seconds is not None and p.clock() >= p.goal.seconds
    if batch is None:
        return Facts(False, stop, late, save, show)
    lags = tuple(sorted(Counter(_lags(p, batch)).items()))
    return Facts(True, stop, late, save, show, batch.steps, batch.ended, lags, tuple(batch.ends))


def _lags(p: Pieces, batch: Batch) -> list[int]:
    """Returns the lag of each unroll of a batch that is about to be trained on."""
    return [p.progress.version - low for low, _ in batch.versions]


def _count(
    p: Pieces, facts: Facts, lags: Sequence[int], began: float, uploaded: float, trained: float
) -> None:
    p.metrics.steps.inc()
    p.metrics.samples.inc(facts.steps)
    p.metrics.phase["upload"].inc(uploaded - began)
    p.metrics.step_seconds.observe(trained - began)
    for lag in lags:
        p.metrics.lag.observe(lag)
