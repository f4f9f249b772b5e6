"""A learner rank, put together: `headrace learner`, or several by torchrun -m launch.learner."""

import argparse
import contextlib
import functools
import logging
import os
import sys
from dataclasses import replace
from typing import Any

import torch

from actors.envs.convert import EnvError
from actors.envs.make import probe
from broker.endpoints import EndpointError
from broker.link import RefusedError
from launch import (
    claim,
    config,
    learner_parts,
    learner_report,
    learner_resume,
    limits,
    logs,
    notify,
    process,
    starts,
    unused,
    web,
)  # fmt: skip
from launch.keyring import open_journal
from launch.learner_options import Options, arguments, options_of
from launch.options import log_form
from learner import checkpoint
from learner.culprits import DivergedError
from learner.feed import Feed
from learner.metrics import LearnerMetrics
from learner.models import custom
from learner.models.build import build
from learner.pieces import Goal, Pieces
from learner.progress import Progress
from learner.ranks import Ranks, RanksError
from learner.train import train
from learner.weights import layout_digest

log = logging.getLogger(__name__)


def learn(run: config.Run, options: Options) -> int:
    """Until the goal, a limit, or SIGTERM. Returns the exit status."""
    process.keep_memory()
    limits.for_peer("a learner")
    asked = process.Asked()
    torch.set_num_threads(run.learner.threads or torch.get_num_threads())
    device = _device(run.learner.device)
    log.info(
        "learner is starting: run %s, %s on %s, device %s, broker %s, folder %s", run.run.name,
        run.algorithm.name, run.env.id, device, options.broker, options.out,
    )  # fmt: skip
    ranks = Ranks(timeout_s=run.learner.rank_timeout_s, cuda=device.type == "cuda")
    if device.type == "cuda":
        device = torch.device("cuda", ranks.local_rank)
        torch.cuda.set_device(device)
    with contextlib.closing(ranks), claim.claim(options.out, f"learner-{ranks.rank}"):
        return _learn(run, options, ranks, device, asked.__bool__)


def _learn(
    run: config.Run, options: Options, ranks: Ranks, device: torch.device, stopping: Any
) -> int:
    if run.pacing.batch_unrolls % ranks.world:
        raise config.ConfigError(
            f"pacing.batch_unrolls = {run.pacing.batch_unrolls} cannot be shared by {ranks.world}"
            f" ranks; make it a multiple of {ranks.world}"
        )
    started = options.started or process.started_at()
    spaces = probe(run.env)
    identity = {"shared": config.shared(run), "spaces": spaces.digest()}
    try:
        model = build(run.model, spaces, seed=run.run.seed).to(device)
    except ValueError as error:
        raise config.ConfigError(str(error)) from error
    resume = learner_resume.checkpoint_of(run, options, identity, model)
    began = learner_resume.began(options, ranks, started)
    progress = Progress()
    if resume is not None:
        model.load_state_dict(resume.tensors["model"])
        progress.restore(resume.state["progress"])
        log.info("continues from %s", resume.path)
        if learner_resume.complete(run, options.out, ranks, progress, began=began):
            return process.OK
    if options.start is not None and ranks.rank == 0:
        learner_resume.keep(options.start)
    journal = open_journal(options.ledger, "learner", process.incarnation())
    recorder = learner_parts.recorder(run, options, ranks, spaces, fresh=resume is None)
    registry = web.registry("learner")
    metrics = LearnerMetrics(registry)
    metrics.begins(ranks.rank, ranks.world, run.checkpoint.every_s)
    port = learner_parts.serve_metrics(registry, run, options, ranks)
    feed = learner_parts.feed(
        run, options, ranks, spaces, layout_digest(model), device, journal, recorder, port
    )
    windows = () if resume is None else resume.state["windows"]
    feed.start(version=progress.version, windows=windows)
    metrics.watch(feed)
    watch = notify.Watch(functools.partial(learner_report.pulse, feed, progress, metrics))
    try:
        feed.welcome(timeout_s=0.0)  # what is wrong with the address comes out here
        watch.start()
        if not learner_resume.wait_for_broker(feed, ranks, progress, stopping):
            feed.leave(final=options.final, text="stopped before a broker answered")
            return process.OK
        pieces = Pieces(
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


def _trained(pieces: Pieces, kind: str, feed: Feed) -> str:
    """Why training ended; an encoder of the user's that fails is the user's to mend."""
    try:
        return train(pieces)
    except RanksError:
        feed.check(within_s=1.0)  # all ranks were refused, and another one ended first
        raise
    except Exception as error:
        if blamed := custom.blamed(kind, error):
            raise config.ConfigError(blamed) from error
        raise


def _leave(feed: Feed, pieces: Pieces, reason: str, *, last: bool) -> None:
    """Says goodbye, and writes what was done. `last`: a request to stop ends the whole run."""
    progress = pieces.progress
    final = reason in ("return", "steps", "seconds") or (last and reason == "stopped")
    feed.leave(final=final, text=learner_report.farewell(reason, progress))
    if pieces.ranks.rank == 0:
        learner_report.write(
            pieces.folder, progress, reason, seconds=pieces.clock(), device=str(pieces.device),
            first_train_s=pieces.first_train_s, world=pieces.ranks.world,
            phase_seconds=pieces.metrics.phase_seconds(),
        )  # fmt: skip


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise config.ConfigError(
            'learner.device = "cuda", but torch finds no GPU here; use "auto" or "cpu"'
        )
    if name not in ("cpu", "cuda"):
        raise config.ConfigError(f'learner.device = "{name}": it is auto, cpu or cuda')
    return torch.device(name)


def guarded(run: config.Run, options: Options) -> int:
    """`learn`, with every expected failure as one line and its exit status."""
    try:
        return learn(run, options)
    except (
        config.ConfigError, EnvError, EndpointError, RefusedError, web.PortError,
        checkpoint.CheckpointError,
    ) as error:  # fmt: skip
        logs.ends(log, error)
        return process.YOUR_INPUT
    except (RanksError, DivergedError) as error:
        log.error("%s", process.exit_line(error))
        return process.OUR_FAULT


def main(given: argparse.Namespace | None = None) -> int:
    """As a role of `headrace`, or by torchrun."""
    if given is None:
        parser = argparse.ArgumentParser(prog="launch.learner")
        arguments(parser)
        log_form(parser)
        parser.set_defaults(log_level="info")
        given = parser.parse_args()
    if "TORCHELASTIC_RUN_ID" in os.environ:
        process.die_with_parent()  # else they would train on beside the next torchrun's ranks
    try:
        form = logs.chosen(given.log)
        logs.start("learner", quiet=given.log_level == "warning", form=form)
        run = config.load(given.run, given.set)
        options = options_of(given, run)
        if not given.final:  # else it is part of `headrace train`, which has seen to the run
            start = starts.begin(given.run, given.set, options.out, resume=given.resume)
            run, options = start.run, replace(options, start=start)
    except config.ConfigError as error:
        log.error("%s", error)
        return process.YOUR_INPUT
    logs.about(run=run.run.name)
    # Of several ranks one says it.
    if not given.final and os.environ.get("RANK", "0") == "0":
        unused.warn(run)
    return guarded(run, options)


if __name__ == "__main__":
    ended = main()
    logging.shutdown()
    sys.stdout.flush()
    # All is saved, said and closed. What torch's threads do while an interpreter is taken down must
    # not turn a good end into a bad one: of 50 ends with two ranks, one aborted.
    os._exit(ended)
