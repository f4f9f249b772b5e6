"""The train loop: one function, read from top to bottom. Its arguments are the `TrainParts`."""

import functools
import logging
import time

import torch
from torch import Tensor, nn

from headrace.learner.algorithms import optimiser_step, own_loss, schedule
from headrace.learner.algorithms.advantages import SQUARE, moved
from headrace.learner.algorithms.batch_uses import Sample, uses_of, with_targets
from headrace.learner.algorithms.gae import gae_targets
from headrace.learner.algorithms.loss_inputs import Loss, LossInputs, LossNorm
from headrace.learner.algorithms.losses import adapted_kl_coef
from headrace.learner.batches.batch import Batch
from headrace.learner.batches.upload import BatchUpload, sample_of
from headrace.learner.history.line import for_beats, line, rounded
from headrace.learner.models.gaussians import LOG_STD
from headrace.learner.models.model import Output
from headrace.learner.models.normalise import explained, moments, value_fit
from headrace.learner.models.precision import autocast
from headrace.learner.nonfinite import BrokenStep, NonFiniteSearch, mark_dead
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
    model, config, algorithm, goal = parts.model, parts.config, parts.algorithm, parts.goal
    feed, ranks, progress, metrics = parts.feed, parts.ranks, parts.progress, parts.metrics
    timed = metrics.timed
    flat, version = FlatWeights(model), progress.version
    torch.manual_seed(((parts.seed * 1009 + ranks.rank) * 1_000_003 + version) % 2**63)
    publish(parts, flat, version)  # samplers begin while the optimiser is still being made
    network = ranks.average_gradients(model, parts.device)
    optimiser = optimiser_step.make_optimiser(config, model, lr=schedule.value_at(config.lr, 0))
    if parts.resume is not None:
        restore(parts, optimiser)
    parameters = list(model.parameters())  # looking them up takes longer than clipping them
    uses, upload, search = uses_of(algorithm), BatchUpload(parts.device), NonFiniteSearch(parts)
    batch: Batch | None = None
    saved_at = shown_at = began = time.monotonic()
    progress.mark(began)
    progress_s = config.progress_s if ranks.rank == 0 else 0.0
    used: dict[str, float] = {}  # settings, in the latest step
    lines = ProgressLines(progress_s, steps=goal.steps, progress=progress, at=parts.clock())

    while True:
        # 1. Wait for a batch, and until all ranks have one.
        with timed("wait"):
            batch = batch or feed.next(timeout_s=0.5)
            now = time.monotonic()
            saves, shows = now - saved_at > parts.saving.every_s, now - shown_at > _SHOW_EVERY_S
            facts = ranks.exchange(_facts(parts, batch, save=saves, show=shows))
        progress.add_evaluation(facts.evaluated)
        if facts.stop or facts.late:
            reason = "seconds" if facts.late else "stopped"
            break
        lines.log_when_due(progress, parts.clock())
        if not facts.ready or batch is None:
            continue

        # 2. Forward, backward, step: once, or as often as the algorithm uses its batches.
        began_step = time.perf_counter()
        with timed("upload"):
            tensors = upload(batch)
            fresh = sample_of(tensors, parts.spaces, previous=parts.previous, unrolls=batch.unrolls)
        used = parts.settings_used()
        for group in optimiser.param_groups:
            group["lr"] = used["lr"]
        whole = LossNorm(steps=max(1, facts.steps), world=ranks.world, reduce=ranks.total)
        prepared = with_targets_of(parts, fresh, whole)
        vs = None if prepared.loss.targets is None else prepared.loss.targets.vs
        taken = 0
        broken: BrokenStep | None = None
        for sample in uses.samples(prepared):
            with timed("forward"):
                loss = loss_of(parts, network, sample, norm=whole if sample is fresh else None)
            with timed("backward"):
                optimiser.zero_grad(set_to_none=True)
                ranks.collective(loss.total.backward)  # the ranks' gradients are averaged meanwhile
            with timed("optimise"):
                grad_norm = optimiser_step.clip_gradients(config, parameters)
                # The gradients are the same on every rank by now, so every rank decides alike.
                if not bool(torch.isfinite(grad_norm)):
                    broken = BrokenStep(sample, loss.stats)
                    break
                optimiser.step()
            taken += 1
            stepped, norm_before = loss, grad_norm
            vs = loss.vs if vs is None else vs
            progress.used(sample.unrolls * ranks.world)  # the others have taken as many
            if after_step(parts, loss):
                break
        if broken is None:
            search.reset(stepped.stats)
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
        search.check_weights()
        update_statistics(parts, fresh, vs)
        version += 1
        step_s = time.perf_counter() - began_step

        # 3. Publish the weights, settle the batch, move the counters.
        publish(parts, flat, version)
        metrics.count_step(facts.steps, batch.ages(progress.version), seconds=step_s)
        progress.step(version=version, steps=facts.steps, ages=facts.ages)
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
        if facts.show:  # all ranks do: what is shown is of all of them
            shown_at = now
            progress.mark(now)
            means = ranks.means(stepped.stats | value_fit(stepped.value, stepped.vs, stepped.share))
            show(parts, explained(means) | {"grad_norm": float(norm_before), **used})
        if reason := goal.met(progress):
            if reason == "return":
                progress.solved(parts.clock())
            break
        if facts.save:
            saved_at = now
            search.check_optimiser(optimiser)
            save(parts, optimiser)

    # A batch that is left is still leased: our goodbye hands it back untouched.
    progress.mark(time.monotonic())
    show(parts, used)
    search.check_optimiser(optimiser)
    save(parts, optimiser)
    log.info(
        "trained %d steps in %.1f s: %s", progress.trained_steps, time.monotonic() - began, reason
    )
    return reason


def inputs_of(parts: TrainParts, network: nn.Module, sample: Sample, norm: LossNorm) -> LossInputs:
    """Runs the network, and the target network if there is one."""
    target: Output | None = None
    with autocast(parts.device.type, parts.config.precision, parts.model):
        output: Output = network(sample.obs, sample.memory, sample.begins)
        if parts.target is not None:
            with torch.no_grad():
                target = parts.target(sample.obs, sample.memory, sample.begins)
    return LossInputs(
        config=parts.algorithm,
        coefs=parts.coefficients(),
        distribution=parts.model.distribution,
        output=output,
        batch=sample.loss,
        target=target,
        norm=norm,
    )


def loss_of(
    parts: TrainParts, network: nn.Module, sample: Sample, *, norm: LossNorm | None = None
) -> Loss:
    """Computes the loss of a sample; `norm`: None = its live steps are counted here."""
    ranks = parts.ranks
    if norm is None:
        steps = ranks.total(sample.loss.live.sum()).clamp(min=1)
        norm = LossNorm(steps=steps, world=ranks.world, reduce=ranks.total)
    return own_loss.function(parts.algorithm)(inputs_of(parts, network, sample, norm))


def with_targets_of(parts: TrainParts, sample: Sample, norm: LossNorm) -> Sample:
    """Adds ppo's targets, made with the network as it is now; the other losses make their own."""
    if parts.algorithm.name != "ppo":
        return sample
    with torch.no_grad():
        return with_targets(sample, gae_targets(inputs_of(parts, parts.model, sample, norm)))


def loss_alone(parts: TrainParts, part: Sample, *, whole: LossNorm) -> Tensor:
    """Returns what some unrolls of a batch add to its loss, without any other rank."""
    norm = LossNorm(steps=whole.steps, world=whole.world)
    return loss_of(parts, parts.model, with_targets_of(parts, part, norm), norm=norm).total


def after_step(parts: TrainParts, loss: Loss) -> bool:
    """Does what follows every optimiser step; True = the batch has moved the policy far enough."""
    progress, algorithm, model = parts.progress, parts.algorithm, parts.model
    progress.learner_steps += 1
    if (part := loss.stats.get(SQUARE)) is not None:
        square = parts.ranks.mean(part)
        progress.advantage_square = moved(progress.advantage_square, square, progress.learner_steps)
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
    live, normaliser, returns = fresh.loss.live, parts.model.normaliser, parts.model.returns
    if normaliser is not None:
        normaliser.update(fresh.obs, live, parts.ranks.total)
    if returns is not None and vs is not None:
        new = vs[:, : live.shape[1]].unsqueeze(-1)
        returns.merge(moments(new, live, parts.ranks.total))


def publish(parts: TrainParts, flat: FlatWeights, version: int) -> None:
    """Copies the weights for the receiver thread, which hashes and sends them."""
    if parts.ranks.rank == 0:
        with parts.metrics.timed("publish"):
            parts.curriculum.update(parts.moment())
            body = flat.dump()
            parts.feed.publish(version, body)
            if parts.gap is not None:
                parts.gap.published(version, body)


def show(parts: TrainParts, stats: dict[str, float]) -> None:
    """Shows numbers to people: in metrics, the run's history, and to those who watch."""
    progress = parts.progress
    ages = progress.step_ages.figures()
    progress.step_ages.clear()
    steps = progress.metrics.steps()
    parts.metrics.show(progress, stats, ages, steps, time.time())
    pace = parts.pace.since(parts.clock(), progress.trained_steps, parts.metrics.phase_seconds())
    figures = pace | ages | stats | parts.curriculum.figures()
    told = line(progress, parts.clock(), figures)
    parts.feed.stats(for_beats(told))
    if parts.ranks.rank == 0:
        if news := progress.news():
            log.warning(news)
        append_history(parts, told | rounded(steps))


def _facts(parts: TrainParts, batch: Batch | None, *, save: bool, show: bool) -> Facts:
    stop = parts.stopping()
    late = parts.goal.seconds is not None and parts.clock() >= parts.goal.seconds
    evaluated = parts.evaluated()
    if batch is None:
        return Facts(False, stop, late, save, show, evaluated=evaluated)
    ages, ends = batch.ages(parts.progress.version), tuple(batch.ends)
    return Facts(True, stop, late, save, show, batch.steps, batch.ended, ages, ends, evaluated)
