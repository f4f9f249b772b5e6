"""The train loop: one function, read from top to bottom. Its arguments are the `TrainParts`."""

import functools
import logging
import time
from collections.abc import Callable

import torch

from headrace.learner.algorithms import optimiser_step, schedule
from headrace.learner.batches.batch import Batch
from headrace.learner.models.normalise import explained
from headrace.learner.models.population.changed_rows import dump_of
from headrace.learner.nonfinite import NonFiniteSearch, mark_dead
from headrace.learner.progress import ProgressLines
from headrace.learner.ranks import Facts
from headrace.learner.sharding.sharded_weights import ShardedWeights
from headrace.learner.step.after_step import after_batch
from headrace.learner.step.choice import device_decides
from headrace.learner.step.device_steps import DeviceSteps
from headrace.learner.step.flight import Flight, Steps
from headrace.learner.step.host_steps import HostSteps
from headrace.learner.step.sample_loss import loss_alone
from headrace.learner.step.show import show
from headrace.learner.train_parts import TrainParts, Turns
from headrace.learner.train_state import restore, save
from headrace.learner.weights import Body, FlatWeights

log = logging.getLogger(__name__)

_GAP_EVERY = 100  # versions
_SHOW_EVERY_S = 0.25


def train(parts: TrainParts) -> Turns[str]:
    """Trains until the goal, a limit, or a request to stop; returns which. Ends with a checkpoint.

    Consumes batches, produces versions; sees a request to stop within half a second. Yields often.
    """
    model, config, goal = parts.model, parts.config, parts.goal
    feed, ranks, progress = parts.feed, parts.ranks, parts.progress
    by_device = device_decides(parts)
    network = model if by_device else ranks.network_of(model, parts.target, config, parts.device)
    spread = ShardedWeights(model, first=ranks.rank == 0) if parts.spread else None
    flat, version = spread or dump_of(model), progress.version
    torch.manual_seed(((parts.seed * 1009 + ranks.rank) * 1_000_003 + version) % 2**63)
    update_curriculum(parts)
    publish(parts, version, flat.dump)  # samplers begin while the optimiser is still being made
    lr = schedule.value_at(config.lr, 0)
    optimiser = optimiser_step.make_optimiser(config, model, lr=lr)
    if parts.resume is not None:
        restore(parts, optimiser)
        parts.resume = None  # or its files would stay open as long as the run
    steps: Steps
    if by_device and isinstance(flat, FlatWeights):
        steps = DeviceSteps(parts, optimiser, flat)
    else:
        steps = HostSteps(parts, network, optimiser, flat.dump)
    search = NonFiniteSearch(parts)
    here: list[Batch] = []  # not begun; a second one if a step before it is to be made again
    flight: Flight | None = None  # of this turn, or of the one before
    under_way: Flight | None = None  # the device may still be at its step
    saved_at = shown_at = began = time.monotonic()
    progress.mark(began)
    progress_s = config.progress_s if ranks.rank == 0 else 0.0
    used: dict[str, float] = {}  # settings, in the latest step
    lines = ProgressLines(progress_s, steps=goal.steps, progress=progress, at=parts.clock())

    while True:
        with parts.metrics.timed("others"):
            yield flight is not None
        # 1. Wait for a batch, and until all ranks have one.
        with parts.metrics.timed("wait"):
            patience_s = 0.0 if under_way else parts.patience()
            if not here and (found := feed.next(patience_s)) is not None:
                here.append(found)
            batch = here[0] if here else None
            now = time.monotonic()
            saves, shows = now - saved_at > parts.saving.every_s, now - shown_at > _SHOW_EVERY_S
            facts = ranks.exchange(_facts(parts, batch, save=saves, show=shows))
        saving = facts.save  # a checkpoint is due
        progress.add_evaluation(facts.evaluated)
        if facts.stop or facts.late:
            reason = "seconds" if facts.late else "stopped"
            break
        lines.log_when_due(progress, parts.clock())

        # 2. Forward, backward, step: once, or as often as the algorithm uses its batches. Where the
        #    device decides, what is settled below is the batch before; and before a checkpoint all
        #    that is under way comes to its end.
        flight = None
        if facts.ready and batch is not None and not (saving and under_way):
            flight = steps.begin(here.pop(0), facts)
        if steps.late:
            flight, under_way = under_way, flight
        if flight is None:
            continue

        # 3. Publish the weights, settle the batch, move the counters.
        used = flight.used
        if not settle(parts, steps, search, flight):
            here[:0] = [flight.batch] if flight.again else []
            continue
        if facts.show:  # all ranks do: what is shown is of all of them
            shown_at = now
            progress.mark(now)
            means = ranks.means(dict(flight.stats) | dict(flight.fit()))
            assert flight.norm is not None
            show(parts, explained(means) | {"grad_norm": float(flight.norm), **used})
        if reason := goal.met(progress):
            if reason == "return":
                progress.solved(parts.clock())
            break
        if saving:  # nothing is under way
            saved_at = now
            search.check_optimiser(optimiser)
            save(parts, optimiser)

    steps.close()
    # A batch that is left is still leased: our goodbye hands it back untouched.
    if under_way is not None:
        settle(parts, steps, search, under_way)
    progress.mark(time.monotonic())
    show(parts, used)
    search.check_optimiser(optimiser)
    save(parts, optimiser)
    log.info(
        "trained %d steps in %.1f s: %s", progress.trained_steps, time.monotonic() - began, reason
    )
    return reason


def settle(parts: TrainParts, steps: Steps, search: NonFiniteSearch, flight: Flight) -> bool:
    """Does what follows the optimiser steps of a batch; tells whether they made a version."""
    progress, metrics, feed = parts.progress, parts.metrics, parts.feed
    batch = flight.batch
    steps.finish(flight)
    if flight.broken is None:
        search.reset(flight.stats)
    elif not rescue(parts, search, flight):
        return False
    if not steps.late:
        search.check_weights()
        assert flight.fresh is not None
        after_batch(parts, flight.fresh, flight.vs)
        update_curriculum(parts)
    elif not flight.sound:
        search.check_weights()
    facts, version = flight.facts, progress.version + 1  # without what was rejected
    step_s = time.perf_counter() - flight.began
    publish(parts, version, functools.partial(steps.weights, flight))
    metrics.count_step(facts.steps, batch.ages(progress.version), seconds=step_s)
    progress.step(version=version, steps=facts.steps, ages=facts.ages)
    progress.add_episodes(facts.ended, facts.ends)
    if parts.gap is not None and flight.broken is None and version % _GAP_EVERY == 1:
        gap = parts.gap.measure(flight.tensors, batch.versions)
        if gap is not None:
            metrics.gap.set(gap)
    feed.trained(batch, version=version)
    if parts.first_train_s is None:
        parts.first_train_s = time.monotonic() - parts.started
        progress.mark(time.monotonic())
    return True


def rescue(parts: TrainParts, search: NonFiniteSearch, flight: Flight) -> bool:
    """Rejects the unrolls that made a step non-finite; tells whether the batch made a version."""
    batch, broken = flight.batch, flight.broken
    assert broken is not None and flight.fresh is not None
    fresh = flight.fresh.copy()  # what is rejected leaves the batch, whose memory this may be
    alone = functools.partial(loss_alone, flight.whole)
    verdict = search.reject_culprits(batch, fresh, broken, alone, used=flight.taken > 0)
    if not flight.taken:
        if verdict.places:
            parts.feed.refill(batch)
        flight.again = not verdict.places
        return False
    if verdict.anywhere:
        facts = flight.facts
        flight.facts = parts.ranks.exchange(_facts(parts, batch, save=facts.save, show=facts.show))
        flight.vs = mark_dead(fresh, flight.vs, verdict.places, batch.unrolls)
    flight.fresh = fresh
    return True


def update_curriculum(parts: TrainParts) -> None:
    """Sets what is to be played with the weights that are published next."""
    if parts.ranks.rank == 0:
        parts.curriculum.update(parts.moment())


def publish(parts: TrainParts, version: int, weights: Callable[[], Body]) -> None:
    """Copies the weights for the receiver thread, which hashes and sends them."""
    with parts.metrics.timed("publish"):
        body = weights() if parts.ranks.rank == 0 or parts.spread else b""
        if parts.ranks.rank == 0:
            parts.feed.publish(version, body)
            if parts.gap is not None:
                parts.gap.published(version, body)


def _facts(parts: TrainParts, batch: Batch | None, *, save: bool, show: bool) -> Facts:
    stop = parts.stopping()
    late = parts.goal.seconds is not None and parts.clock() >= parts.goal.seconds
    evaluated = parts.evaluated()
    if batch is None:
        return Facts(False, stop, late, save, show, evaluated=evaluated)
    ages, ends = batch.ages(parts.progress.version), tuple(batch.ends)
    return Facts(True, stop, late, save, show, batch.steps, batch.ended, ages, ends, evaluated)
