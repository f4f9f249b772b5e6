"""Puts a learner rank together: its process, and what it trains."""

import contextlib
import functools
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from headrace.actors.envs.make import probe
from headrace.broker.errors import DivergedError
from headrace.broker.weights.blobs import MAX_BYTES
from headrace.launch.config import run_file, shared_run
from headrace.launch.process import descriptors, folder_lock, logs, runtime
from headrace.launch.process.sd_notify import Watchdog, WatchdogReading, together
from headrace.launch.roles import learner_device, learner_parts, learner_report, learner_resume
from headrace.launch.roles.learner_parts import LearnerParts
from headrace.launch.roles.options import LearnerOptions
from headrace.launch.roles.role import Role
from headrace.learner.algorithms import own_loss
from headrace.learner.algorithms.curriculum import Curriculum
from headrace.learner.batches.receiver import UnrollReceiver
from headrace.learner.metrics import LearnerMetrics
from headrace.learner.models.build import Model, build
from headrace.learner.models.encoders import custom
from headrace.learner.models.named_code import OwnCodeError
from headrace.learner.progress import Progress
from headrace.learner.ranks import Ranks, RanksError
from headrace.learner.step.show import show
from headrace.learner.train import train
from headrace.learner.train_parts import TrainParts, Turns, to_end
from headrace.learner.weights import layout, layout_digest

log = logging.getLogger(__name__)


@dataclass(slots=True)
class LearnerProcess:
    """Holds what all have in common that a process trains."""

    ranks: Ranks
    device: torch.device
    stopping: Callable[[], bool]  # somebody asked us to end
    watchdog: Watchdog
    reads: list[Callable[[], WatchdogReading]]  # how each that is trained gets on
    patience_s: float = 0.5  # the longest wait for a batch in one turn

    def patience(self) -> float:
        return self.patience_s

    def watch(self, read: Callable[[], WatchdogReading]) -> None:
        """Has the watchdog look at one more."""
        self.reads.append(read)
        self.watchdog.start()

    def unwatch(self, read: Callable[[], WatchdogReading]) -> None:
        """Has it leave one alone, if it looks at it."""
        if read in self.reads:
            self.reads.remove(read)


@contextlib.contextmanager
def opened(*learners: tuple[run_file.Run, LearnerOptions]) -> Iterator[LearnerProcess]:
    """Makes this process a learner rank of these runs, with what the first says of the machine."""
    run = learners[0][0]
    if run.learner.gpu_share:  # before CUDA starts; of MPS, where that runs
        percent = max(1, round(100 * run.learner.gpu_share))
        os.environ.setdefault("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", str(percent))
    device = learner_device.found(run.learner.device)
    for one, options in learners:
        log.info(
            "learner is starting: run %s, %s on %s, device %s, broker %s, folder %s",
            one.run.name,
            one.algorithm.name,
            one.env.id,
            device,
            options.broker,
            options.out,
        )
        run_file.check_ranks(one, int(os.environ.get("WORLD_SIZE", "1")))  # before they wait
    # While they wait for each other in torch a handler would not run: a signal kills at once.
    ranks = Ranks(timeout_s=run.learner.rank_timeout_s, cuda=device.type == "cuda")
    asked = runtime.StopRequested()
    runtime.keep_memory()
    descriptors.for_peer("a learner")
    torch.set_num_threads(run.learner.threads or torch.get_num_threads())
    device = learner_device.of_rank(device, ranks)
    reads: list[Callable[[], WatchdogReading]] = []
    watchdog = Watchdog(together(reads))
    with contextlib.closing(ranks), learner_device.share_taken(device, run.learner.gpu_share):
        try:
            yield LearnerProcess(ranks, device, asked.__bool__, watchdog, reads)
        finally:
            watchdog.stop()


@logs.one_line_errors()
def learn(run: run_file.Run, options: LearnerOptions) -> int:
    """Trains until the goal, a limit, or SIGTERM. Returns the exit status."""
    with opened((run, options)) as process:
        return to_end(learn_in_turns(process, run, options))


def learn_in_turns(
    process: LearnerProcess, run: run_file.Run, options: LearnerOptions
) -> Turns[int]:
    """Trains a run in turns; returns the exit status."""
    ranks = process.ranks
    name = learner_parts.name_of(ranks)
    with (
        folder_lock.lock_folder(options.out, name),
        Role("learner", name=name, run=run.run.name) as role,
    ):
        heard = learner_parts.heard_evaluations(run, ranks)
        parts = LearnerParts(run, options, ranks, process.device, probe(run.env), role, heard)
        return (yield from _learn(parts, process))


def _learn(parts: LearnerParts, process: LearnerProcess) -> Turns[int]:
    run, options, ranks, spaces = parts.run, parts.options, parts.ranks, parts.spaces
    started = options.started or runtime.started_at()
    identity = {"shared": shared_run.shared(run), "spaces": spaces.digest()}
    model, curriculum = _model(parts)
    resume = learner_resume.checkpoint_of(run, options, identity, model)
    began = learner_resume.clock_began_at(options, ranks, started)
    progress = Progress(run.env.metrics, episodes=run.log.episodes, population=run.env.population)
    if resume is not None:
        model.load_state_dict(resume.tensors["model"])
        learner_resume.restore_progress(progress, resume, run)
        if learner_resume.complete(run, options.out, ranks, progress, began=began):
            return runtime.OK
    else:
        learner_resume.first_weights(model, run.learner, seed=run.run.seed)
    if options.start is not None:
        learner_resume.refuse_diverged(options.start, ranks)
        learner_resume.keep_start(options.start, ranks)
    journal = parts.role.open_journal(options.ledger, trace_every=run.unroll.trace_every)
    recorder = parts.recorder(fresh=resume is None)
    metrics = LearnerMetrics(parts.role.registry)
    metrics.set_constants(ranks.rank, ranks.world, run.checkpoint.every_s)
    feed = parts.feed(layout_digest(model), journal, recorder)
    feed.start(version=progress.version, windows=resume.state["windows"] if resume else ())
    metrics.watch(feed)
    read = functools.partial(learner_report.watchdog_reading, feed, progress, metrics)
    parts.role.watchdog = process.watchdog
    try:
        feed.wait_for_welcome(timeout_s=0.0)  # what is wrong with the address comes out here
        process.watch(read)
        waiting = learner_resume.wait_for_broker(
            feed, ranks, progress, process.stopping, process.patience
        )
        if not (yield from waiting):
            feed.leave(final=options.final, text="stopped before a broker answered")
            return runtime.OK
        algorithm, config = parts.settled()
        pieces = TrainParts(
            algorithm=algorithm,
            config=config,
            saving=run.checkpoint,
            goal=learner_resume.goal_of(run.stop),
            evaluated=lambda: None if parts.heard is None else parts.heard.best,
            ranks=ranks,
            feed=feed,
            model=model,
            target=parts.target(model),
            curriculum=curriculum,
            gap=parts.gap_check(),
            progress=progress,
            metrics=metrics,
            device=parts.device,
            folder=options.out,
            spaces=spaces,
            previous=run.model.previous,
            identity=identity,
            resume=resume,
            stopping=process.stopping,
            patience=process.patience,
            plain=lambda: build(run.model, spaces, seed=0),
            seed=run.run.seed,
            started=started,
            began=began,
        )
        del resume  # whoever holds it keeps the checkpoint's files open
        reason = diagnosis = ""
        try:
            reason = yield from _trained(pieces, run, feed)
        except DivergedError as error:
            show(pieces, {})
            reason, diagnosis = "diverged", str(error)
            raise
        finally:
            _leave(feed, pieces, reason, diagnosis=diagnosis, last=options.final)
        return learner_report.status(run, progress, reason)
    finally:
        # A thread that outlives the interpreter takes it down. Nothing happens if it has left.
        feed.leave(final=False, text="the learner failed")
        process.unwatch(read)


def _model(parts: LearnerParts) -> tuple[Model, Curriculum]:
    """Returns the network, and what changes env.settings in it; ConfigError for code of the user's
    that is not there."""
    run = parts.run
    if run.env.population and parts.ranks.world > 1:
        raise run_file.ConfigError(
            f"env.population = {run.env.population}: one learner rank trains all of them;"
            f" start it without the other {parts.ranks.world - 1}"
        )
    try:
        own_loss.function(run.algorithm)
        model = build(run.model, parts.spaces, seed=run.run.seed).to(parts.made_on)
        curriculum = Curriculum(run.env.curriculum, run.env.settings, model)
    except ValueError as error:
        raise run_file.ConfigError(str(error)) from error
    if parts.ranks.rank == 0:
        learner_report.log_network(run.model, parts.spaces, model)
    nbytes = sum(entry.nbytes for entry in layout(model))
    if nbytes > MAX_BYTES:
        raise run_file.ConfigError(
            f"the network has {nbytes >> 20} MiB of weights, and at most {MAX_BYTES >> 20} travel"
            ' to samplers; make it smaller (model, env.population), or set model.wire = "bfloat16"'
        )
    return model, curriculum


def _trained(pieces: TrainParts, run: run_file.Run, feed: UnrollReceiver) -> Turns[str]:
    """Trains; returns why it ended. An error in the user's own code is a ConfigError, and so is a
    batch that a GPU has no memory for."""
    try:
        with pieces.ranks.exchanging():
            return (yield from train(pieces))
    except RanksError:
        feed.check(within_s=1.0)  # all ranks were refused, and another one ended first
        raise
    except OwnCodeError as error:
        raise run_file.ConfigError(str(error)) from error
    except torch.OutOfMemoryError as error:
        raise run_file.ConfigError(too_large(run, error)) from error
    except Exception as error:
        if blamed := custom.blame_users_code(run.model.kind, error):
            raise run_file.ConfigError(blamed) from error
        raise


def too_large(run: run_file.Run, error: torch.OutOfMemoryError) -> str:
    """Says what a GPU has no memory for, how much is missing, and what to change."""
    _, found, rest = str(error).partition("Tried to allocate ")
    missing = f": it asked for {'. '.join(rest.split('. ')[:2])}" if found else ""
    unroll, unrolls, share = run.unroll, run.pacing.batch_unrolls, run.learner.gpu_share
    limit = f" in its share of it (learner.gpu_share = {share:g})" if share else ""
    steps = unrolls * unroll.envs * unroll.length
    return (
        f"the GPU has too little memory{limit} for this network and a batch of {steps}"
        f" steps{missing};"
        f" lower pacing.batch_unrolls ({unrolls}) or unroll.envs ({unroll.envs}), or free the"
        " memory that others hold"
    )


def _leave(
    feed: UnrollReceiver, pieces: TrainParts, reason: str, *, diagnosis: str, last: bool
) -> None:
    """Says goodbye, and writes learner.json. `last`: a request to stop ends the whole run, and so
    does divergence: else samplers wait for a learner with other settings."""
    progress = pieces.progress
    final = reason in ("return", "steps", "seconds")
    final = final or (last and reason in ("stopped", "diverged"))
    feed.leave(final=final, text=learner_report.leave_text(reason, progress))
    if pieces.ranks.rank == 0:
        learner_report.write(
            pieces.folder,
            progress,
            reason,
            diagnosis=diagnosis,
            seconds=pieces.clock(),
            device=str(pieces.device),
            first_train_s=pieces.first_train_s,
            world=pieces.ranks.world,
            phase_seconds=pieces.metrics.phase_seconds(),
        )
