"""The train loop: one function, read from top to bottom. Its arguments are the `TrainParts`."""

import functools
import inspect
import logging
import time
from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn

from headrace.learner.algorithms import optimiser_step, schedule
from headrace.learner.algorithms.batch_uses import Sample, uses_of, with_targets
from headrace.learner.algorithms.loss_inputs import Coefficients, Loss, LossNorm, Targets
from headrace.learner.algorithms.losses import LOSSES, adapted_kl_coef, live_steps, ppo_targets
from headrace.learner.batches.batch import Batch
from headrace.learner.batches.upload import BatchUpload, sample_of
from headrace.learner.culprits import NonFiniteSearch, mark_dead
from headrace.learner.models.gaussians import LOG_STD
from headrace.learner.models.model import Output
from headrace.learner.models.normalise import moments
from headrace.learner.models.precision import autocast
from headrace.learner.progress import ProgressLines
from headrace.learner.ranks import Facts
from headrace.learner.train_parts import TrainParts
from headrace.learner.train_state import append_history, restore, save
from headrace.learner.weights import FlatWeights

log = logging.getLogger(__name__)

_GAP_EVERY = 100  # versions
_SHOW_EVERY_S = 0.25


def train(parts: TrainParts) -> str:
    """Trains until the goal, a limit, or a request to stop; returns which. Ends with a checkpoint.

    Consumes batches, produces versions; sees a request to stop within half a second.
    """
    model, device, spaces = parts.model, parts.device, parts.spaces
    config, algorithm, goal = parts.config, parts.algorithm, parts.goal
    feed, ranks, progress, metrics = parts.feed, parts.ranks, parts.progress, parts.metrics
    phase = metrics.phase
    flat, version = FlatWeights(model), progress.version
    torch.manual_seed(((parts.seed * 1009 + ranks.rank) * 1_000_003 + version) % 2**63)
    publish(parts, flat, version)  # samplers begin while the optimiser is still being made
    network: nn.Module = model
    if ranks.world > 1:
        devices = [device.index] if device.type == "cuda" else None
        # Buffers are moved by every rank alike; there is nothing to send. torch 2.13 renames this.
        ddp: Any = nn.parallel.DistributedDataParallel
        renamed = "forward_sync_buffers" in inspect.signature(ddp).parameters
        still = {"forward_sync_buffers" if renamed else "broadcast_buffers": False}
        network = ddp(model, device_ids=devices, **still)
    optimiser = optimiser_step.make_optimiser(config, model, lr=schedule.value_at(config.lr, 0))
    if parts.resume is not None:
        restore(parts, optimiser)
    parameters = list(model.parameters())  # looking them up takes longer than clipping them
    uses, upload, search = uses_of(algorithm), BatchUpload(device), NonFiniteSearch(parts)
    saved_at = shown_at = began = time.monotonic()
    batch: Batch | None = None
    progress.mark(time.monotonic())
    progress_s = config.progress_s if ranks.rank == 0 else 0.0
    lines = ProgressLines(progress_s, steps=goal.steps, progress=progress, at=parts.clock())

    while True:
        # 1. Wait for a batch, and until all ranks have one.
        waiting = time.perf_counter()
        batch = batch or feed.next(timeout_s=0.5)
        now = time.monotonic()
        saves, shows = now - saved_at > parts.saving.every_s, now - shown_at > _SHOW_EVERY_S
        facts = ranks.exchange(_facts(parts, batch, save=saves, show=shows))
        phase["wait"].inc(time.perf_counter() - waiting)
        if facts.stop or facts.late:
            reason = "seconds" if facts.late else "stopped"
            break
        lines.log_when_due(progress, parts.clock())
        if not facts.ready or batch is None:
            continue

        # 2. Forward, backward, step: once, or as often as the algorithm uses its batches.
        began_step = time.perf_counter()
        tensors = upload(batch)
        fresh = sample_of(tensors, spaces, previous=parts.previous, unrolls=batch.unrolls)
        uploaded = time.perf_counter()
        lr = schedule.value_at(config.lr, progress.trained_steps)
        for group in optimiser.param_groups:
            group["lr"] = lr
        taken, broken, vs = 0, None, None
        made: list[Targets] = []  # by ppo, of the whole batch
        whole = LossNorm(steps=max(1, facts.steps), world=ranks.world, reduce=ranks.total)
        for sample in uses.samples(fresh, functools.partial(targets_of, parts, made, norm=whole)):
            forward = time.perf_counter()
            loss = loss_of(parts, network, sample, norm=whole if sample is fresh else None)
            backward = time.perf_counter()
            optimiser.zero_grad(set_to_none=True)
            ranks.collective(loss.total.backward)  # the ranks' gradients are averaged meanwhile
            optimise_from = time.perf_counter()
            phase["forward"].inc(backward - forward)
            phase["backward"].inc(optimise_from - backward)
            grad_norm = optimiser_step.clip_gradients(config, parameters)
            # The gradients are the same on every rank by now, so every rank decides alike.
            if not bool(torch.isfinite(grad_norm)):
                broken = sample
                break
            optimiser.step()
            taken += 1
            phase["optimise"].inc(time.perf_counter() - optimise_from)
            stepped, norm_before = loss, grad_norm
            vs = loss.vs if vs is None else vs
            progress.used(sample.unrolls * ranks.world)  # the others have taken as many
            if after_step(parts, loss):
                break
        vs = made[0].vs if made else vs
        if broken is None:
            search.reset()
        else:
            fresh = fresh.copy()  # what is rejected leaves the batch, whose memory this may be
            alone = functools.partial(loss_alone, parts, whole=whole)
            verdict = search.reject_culprits(batch, fresh, broken, alone, used=taken > 0)
            if not taken:
                if verdict.places:
                    feed.refill(batch)
                    batch = None
                continue
            if verdict.anywhere:
                facts = ranks.exchange(_facts(parts, batch, save=facts.save, show=facts.show))
                vs = mark_dead(fresh, vs, verdict.places, batch.unrolls)
        update_statistics(parts, fresh, vs)
        version += 1
        trained = time.perf_counter()

        # 3. Publish the weights, settle the batch, move the counters.
        publish(parts, flat, version)
        own_lags = batch.lags(progress.version)
        progress.step(version=version, steps=facts.steps, lags=dict(facts.lags))
        progress.add_episodes(facts.ended, facts.ends)
        if parts.gap is not None and broken is None and version % _GAP_EVERY == 1:
            gap = parts.gap.measure(tensors, batch.versions)
            if gap is not None:
                metrics.gap.set(gap)
        feed.trained(batch, version=version)
        batch = None
        if parts.first_train_s is None:
            parts.first_train_s = time.monotonic() - parts.started
            progress.mark(now)
        phase["upload"].inc(uploaded - began_step)
        metrics.count_step(facts.steps, own_lags, seconds=trained - began_step)
        if facts.show:  # all ranks do: what is shown is of all of them
            shown_at = now
            progress.mark(now)
            means = ranks.means(stepped.stats)
            show(parts, means | {"grad_norm": float(norm_before), "lr": lr})
        if progress.reached(goal.return_):
            if progress.solved_at_s is None:
                progress.solved_at_s = parts.clock()
                progress.solved_at_steps = progress.trained_steps
            reason = "return"
            break
        if goal.steps is not None and progress.trained_steps >= goal.steps:
            reason = "steps"
            break
        if facts.save:
            saved_at = now
            save(parts, optimiser)

    # A batch that is left is still leased: our goodbye hands it back untouched.
    progress.mark(time.monotonic())
    show(parts, {})
    save(parts, optimiser)
    log.info(
        "trained %d steps in %.1f s: %s", progress.trained_steps, time.monotonic() - began, reason
    )
    return reason


def coefficients_at(parts: TrainParts) -> Coefficients:
    """Returns what schedules, adaptation and statistics make of the config at this step."""
    steps, algorithm = parts.progress.trained_steps, parts.algorithm
    adapting, returns = algorithm.kl_target > 0, parts.model.returns
    return Coefficients(
        clip=schedule.value_at(algorithm.clip, steps),
        entropy_coef=schedule.value_at(algorithm.entropy_coef, steps),
        kl_coef=algorithm.kl_coef if not adapting else parts.progress.kl_coef or algorithm.kl_coef,
        std=1.0 if returns is None else returns.std.float(),
    )


def loss_of(
    parts: TrainParts, network: nn.Module, sample: Sample, *, norm: LossNorm | None = None
) -> Loss:
    """Computes the loss of a sample; `norm`: None = its live steps are counted here."""
    ranks = parts.ranks
    with autocast(parts.device.type, parts.config.precision, parts.model):
        output: Output = network(sample.obs, sample.memory, sample.begins)
        target: Output | None = None
        if parts.target is not None:
            with torch.no_grad():
                target = parts.target(sample.obs, sample.memory, sample.begins)
    if norm is None:
        steps = ranks.total(live_steps(sample.loss.flags).sum()).clamp(min=1)
        norm = LossNorm(steps=steps, world=ranks.world, reduce=ranks.total)
    return LOSSES[parts.algorithm.name](
        parts.algorithm,
        coefficients_at(parts),
        distribution=parts.model.distribution,
        output=output,
        batch=sample.loss,
        target=target,
        norm=norm,
    )


@torch.no_grad()
def targets_of(parts: TrainParts, made: list[Targets], sample: Sample, norm: LossNorm) -> Targets:
    """Computes ppo's targets, with the network as it is now."""
    with autocast(parts.device.type, parts.config.precision, parts.model):
        output: Output = parts.model(sample.obs, sample.memory, sample.begins)
    now = coefficients_at(parts)
    made.append(ppo_targets(parts.algorithm, now, output=output, batch=sample.loss, norm=norm))
    return made[-1]


def loss_alone(parts: TrainParts, part: Sample, *, whole: LossNorm) -> Tensor:
    """Returns what some unrolls of a batch add to its loss, without any other rank."""
    norm = LossNorm(steps=whole.steps, world=whole.world)
    if parts.algorithm.name == "ppo":
        part = with_targets(part, functools.partial(targets_of, parts, [], norm=norm))
    return loss_of(parts, parts.model, part, norm=norm).total


def after_step(parts: TrainParts, loss: Loss) -> bool:
    """Does what follows every optimiser step; True = the batch has moved the policy far enough."""
    progress, algorithm, model = parts.progress, parts.algorithm, parts.model
    progress.learner_steps += 1
    if model.log_std is not None:
        model.log_std.data.clamp_(*LOG_STD)  # so that its way back is never long
    if parts.target is not None and progress.learner_steps % algorithm.target_interval == 0:
        # Measured where the target is oldest: just after a move the two are equal.
        if algorithm.kl_target and "target_kl" in loss.stats:
            coef = algorithm.kl_coef if progress.kl_coef is None else progress.kl_coef
            kl = parts.ranks.mean(loss.stats["target_kl"])
            progress.kl_coef = adapted_kl_coef(coef, kl, algorithm.kl_target)
        optimiser_step.update_target(parts.target, model, algorithm.target_rate)
    if algorithm.kl_stop and algorithm.name == "ppo":
        return parts.ranks.mean(loss.stats["kl"]) > algorithm.kl_stop
    return False


def update_statistics(parts: TrainParts, fresh: Sample, vs: Tensor | None) -> None:
    """Updates them once for each batch, only from what is new in it, however often it was used."""
    flags, normaliser, returns = fresh.loss.flags, parts.model.normaliser, parts.model.returns
    live = live_steps(flags)
    if normaliser is not None:
        normaliser.update(fresh.obs, live, parts.ranks.total)
    if returns is not None and vs is not None:
        new = vs[:, : flags.shape[1]].unsqueeze(-1)
        returns.merge(moments(new, live, parts.ranks.total))


def publish(parts: TrainParts, flat: FlatWeights, version: int) -> None:
    """Copies the weights for the receiver thread, which hashes and sends them."""
    if parts.ranks.rank == 0:
        before = time.perf_counter()
        body = flat.dump()
        parts.feed.publish(version, body)
        if parts.gap is not None:
            parts.gap.published(version, body)
        parts.metrics.phase["publish"].inc(time.perf_counter() - before)


def show(parts: TrainParts, stats: dict[str, float]) -> None:
    """Shows numbers to people: in metrics, the run's history, and to those who watch."""
    progress = parts.progress
    parts.metrics.show(progress, stats, time.time())
    line = {
        "t": round(parts.clock(), 3),
        "version": progress.version,
        "trained_steps": progress.trained_steps,
        "episodes": progress.episodes,
        "mean_return": progress.mean_return(),
        "lag": progress.lag()["mean"],
        **{name: round(value, 6) for name, value in stats.items()},
    }
    parts.feed.stats({name: float(value) for name, value in line.items() if value is not None})
    if parts.ranks.rank == 0:
        if news := progress.score.news():
            log.warning(news)
        append_history(parts, line)


def _facts(parts: TrainParts, batch: Batch | None, *, save: bool, show: bool) -> Facts:
    stop = parts.stopping()
    late = parts.goal.seconds is not None and parts.clock() >= parts.goal.seconds
    if batch is None:
        return Facts(False, stop, late, save, show)
    lags = tuple(sorted(Counter(batch.lags(parts.progress.version)).items()))
    return Facts(True, stop, late, save, show, batch.steps, batch.ended, lags, tuple(batch.ends))
