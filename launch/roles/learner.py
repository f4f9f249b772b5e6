"""Puts a learner rank together: `headrace learner`, or torchrun -m headrace.launch.learner."""

import argparse
import contextlib
import functools
import logging
import os
from dataclasses import replace
from typing import Any

import torch

from headrace.actors.envs.convert import EnvError
from headrace.actors.envs.make import probe
from headrace.broker.transport.endpoints import EndpointError
from headrace.broker.transport.link import RefusedError
from headrace.launch.config import run_file, shared_run, starts, unused_keys
from headrace.launch.config.keyring import open_journal
from headrace.launch.process import descriptors, folder_lock, http, logs, runtime, sd_notify
from headrace.launch.roles import learner_parts, learner_report, learner_resume
from headrace.launch.roles.learner_options import Options, arguments, options_of
from headrace.launch.shared_options import log_form
from headrace.learner import checkpoint
from headrace.learner.batches.receiver import UnrollReceiver
from headrace.learner.culprits import DivergedError
from headrace.learner.metrics import LearnerMetrics
from headrace.learner.models.build import build
from headrace.learner.models.encoders import custom
from headrace.learner.progress import Progress
from headrace.learner.ranks import Ranks, RanksError
from headrace.learner.train import train
from headrace.learner.train_parts import Goal, TrainParts
from headrace.learner.weights import layout_digest

log = logging.getLogger(__name__)


def learn(run: run_file.Run, options: Options) -> int:
    """Trains until the goal, a limit, or SIGTERM. Returns the exit status."""
    runtime.keep_memory()
    descriptors.for_peer("a learner")
    asked = runtime.StopRequested()
    torch.set_num_threads(run.learner.threads or torch.get_num_threads())
    device = _device(run.learner.device)
    log.info(
        "learner is starting: run %s, %s on %s, device %s, broker %s, folder %s",
        run.run.name,
        run.algorithm.name,
        run.env.id,
        device,
        options.broker,
        options.out,
    )
    ranks = Ranks(timeout_s=run.learner.rank_timeout_s, cuda=device.type == "cuda")
    if device.type == "cuda":
        device = torch.device("cuda", ranks.local_rank)
        torch.cuda.set_device(device)
    with contextlib.closing(ranks), folder_lock.lock_folder(options.out, f"learner-{ranks.rank}"):
        return _learn(run, options, ranks, device, asked.__bool__)


def _learn(
    run: run_file.Run, options: Options, ranks: Ranks, device: torch.device, stopping: Any
) -> int:
    _check_batch(run, ranks)
    started = options.started or runtime.started_at()
    spaces = probe(run.env)
    identity = {"shared": shared_run.shared(run), "spaces": spaces.digest()}
    try:
        model = build(run.model, spaces, seed=run.run.seed).to(device)
    except ValueError as error:
        raise run_file.ConfigError(str(error)) from error
    resume = learner_resume.checkpoint_of(run, options, identity, model)
    began = learner_resume.clock_began_at(options, ranks, started)
    progress = Progress()
    if resume is not None:
        model.load_state_dict(resume.tensors["model"])
        progress.restore(resume.state["progress"])
        log.info("continues from %s", resume.path)
        if learner_resume.complete(run, options.out, ranks, progress, began=began):
            return runtime.OK
    if options.start is not None and ranks.rank == 0:
        learner_resume.keep_start(options.start)
    journal = open_journal(options.ledger, "learner", runtime.incarnation())
    recorder = learner_parts.recorder(run, options, ranks, spaces, fresh=resume is None)
    registry = http.registry("learner")
    metrics = LearnerMetrics(registry)
    metrics.set_constants(ranks.rank, ranks.world, run.checkpoint.every_s)
    port = learner_parts.serve_metrics(registry, run, options, ranks)
    feed = learner_parts.feed(
        run, options, ranks, spaces, layout_digest(model), device, journal, recorder, port
    )
    windows = () if resume is None else resume.state["windows"]
    feed.start(version=progress.version, windows=windows)
    metrics.watch(feed)
    read = functools.partial(learner_report.watchdog_reading, feed, progress, metrics)
    watch = sd_notify.Watchdog(read)
    try:
        feed.wait_for_welcome(timeout_s=0.0)  # what is wrong with the address comes out here
        watch.start()
        if not learner_resume.wait_for_broker(feed, ranks, progress, stopping):
            feed.leave(final=options.final, text="stopped before a broker answered")
            return runtime.OK
        pieces = TrainParts(
            algorithm=run.algorithm,
            config=run.learner,
            saving=run.checkpoint,
            goal=Goal(run.stop.return_, run.stop.steps, run.stop.seconds),
            ranks=ranks,
            feed=feed,
            model=model,
            target=learner_parts.target(run, spaces, model, device),
            gap=learner_parts.gap_check(run, spaces),
            progress=progress,
            metrics=metrics,
            device=device,
            folder=options.out,
            spaces=spaces,
            previous=run.model.previous,
            identity=identity,
            resume=resume,
            stopping=stopping,
            seed=run.run.seed,
            started=started,
            began=began,
        )
        reason = ""
        try:
            reason = _trained(pieces, run.model.kind, feed)
        finally:
            _leave(feed, pieces, reason, last=options.final)
        return learner_report.status(run, progress, reason)
    finally:
        # A thread that outlives the interpreter takes it down. Nothing happens if it has left.
        feed.leave(final=False, text="the learner failed")
        watch.stop()
        journal.close()


def _check_batch(run: run_file.Run, ranks: Ranks) -> None:
    if run.pacing.batch_unrolls % ranks.world:
        raise run_file.ConfigError(
            f"pacing.batch_unrolls = {run.pacing.batch_unrolls} cannot be shared by {ranks.world}"
            f" ranks; make it a multiple of {ranks.world}"
        )


def _trained(pieces: TrainParts, kind: str, feed: UnrollReceiver) -> str:
    """Trains; returns why it ended. An error in the user's own encoder is a ConfigError."""
    try:
        return train(pieces)
    except RanksError:
        feed.check(within_s=1.0)  # all ranks were refused, and another one ended first
        raise
    except Exception as error:
        if blamed := custom.blame_users_code(kind, error):
            raise run_file.ConfigError(blamed) from error
        raise


def _leave(feed: UnrollReceiver, pieces: TrainParts, reason: str, *, last: bool) -> None:
    """Says goodbye, and writes learner.json. `last`: a request to stop ends the whole run."""
    progress = pieces.progress
    final = reason in ("return", "steps", "seconds") or (last and reason == "stopped")
    feed.leave(final=final, text=learner_report.leave_text(reason, progress))
    if pieces.ranks.rank == 0:
        learner_report.write(
            pieces.folder,
            progress,
            reason,
            seconds=pieces.clock(),
            device=str(pieces.device),
            first_train_s=pieces.first_train_s,
            world=pieces.ranks.world,
            phase_seconds=pieces.metrics.phase_seconds(),
        )


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise run_file.ConfigError(
            'learner.device = "cuda", but torch finds no GPU here; use "auto" or "cpu"'
        )
    if name not in ("cpu", "cuda"):
        raise run_file.ConfigError(f'learner.device = "{name}": it is auto, cpu or cuda')
    return torch.device(name)


def guarded(run: run_file.Run, options: Options) -> int:
    """Runs `learn`; returns its exit status, and logs every expected failure in one line."""
    try:
        return learn(run, options)
    except (
        run_file.ConfigError,
        EnvError,
        EndpointError,
        RefusedError,
        http.PortError,
        checkpoint.CheckpointError,
    ) as error:
        logs.log_end(log, error)
        return runtime.YOUR_INPUT
    except (RanksError, DivergedError) as error:
        log.error("%s", runtime.exit_line(error))
        return runtime.OUR_FAULT


def main(given: argparse.Namespace | None = None) -> int:
    """Runs as a role of `headrace`, or under torchrun."""
    if given is None:
        parser = argparse.ArgumentParser(prog="headrace.launch.learner")
        arguments(parser)
        log_form(parser)
        parser.set_defaults(log_level="info")
        given = parser.parse_args()
    if "TORCHELASTIC_RUN_ID" in os.environ:
        runtime.die_with_parent()  # else they would train on beside the next torchrun's ranks
    try:
        form = logs.chosen(given.log)
        logs.start("learner", quiet=given.log_level == "warning", form=form)
        run = run_file.load(given.run, given.set)
        options = options_of(given, run)
        if not given.final:  # else it is part of `headrace train`, which has seen to the run
            start = starts.begin(given.run, given.set, options.out, resume=given.resume)
            run, options = start.run, replace(options, start=start)
    except run_file.ConfigError as error:
        log.error("%s", error)
        return runtime.YOUR_INPUT
    logs.set_identity(run=run.run.name)
    # Of several ranks one says it.
    if not given.final and os.environ.get("RANK", "0") == "0":
        unused_keys.warn(run)
    return guarded(run, options)
