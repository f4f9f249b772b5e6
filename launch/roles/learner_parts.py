"""Builds the parts of a learner rank from its run and its command line."""

import functools
import logging
from typing import Any

import torch

from headrace.broker.journal.journal import Journal
from headrace.broker.peers.learner import LearnerEnd
from headrace.launch.config import keyring, run_file, shared_run, unroll_size
from headrace.launch.process import http, logs, runtime
from headrace.launch.roles.learner_options import Options
from headrace.learner.batches.batch import Batch
from headrace.learner.batches.logprob_gap import LogProbGap
from headrace.learner.batches.receiver import UnrollReceiver
from headrace.learner.batches.recording import Recorder
from headrace.learner.models.build import build
from headrace.learner.ranks import Ranks
from headrace.learner.spaces import Spaces

log = logging.getLogger(__name__)


def feed(
    run: run_file.Run,
    options: Options,
    ranks: Ranks,
    spaces: Spaces,
    layout: str,
    device: torch.device,
    journal: Journal,
    recorder: Recorder | None,
    port: int,
) -> UnrollReceiver:
    length, envs = run.unroll.length, run.unroll.envs
    name, inc = f"learner-{ranks.rank}", runtime.incarnation()
    logs.set_identity(inc=inc, name=name)
    make_batch = functools.partial(
        Batch,
        spaces,
        length=length,
        envs=envs,
        unrolls=run.pacing.batch_unrolls // ranks.world,
        pinned=device.type == "cuda",
        memory=run.model.memory,
        previous=run.model.previous,
        largest=run.unroll.largest,
    )
    make_end = functools.partial(
        LearnerEnd,
        options.broker,
        name=name,
        inc=inc,
        rank=ranks.rank,
        world=ranks.world,
        group=ranks.same([inc])[0],
        take_over=options.take_over,
        # A user who resumes an empty folder was told so, and goes on.
        fresh=options.fresh or options.resume,
        run=run.run.name,
        shared=shared_run.shared(run),
        spaces=(spaces.digest(), str(spaces)),
        unroll_bytes=unroll_size.unroll_bytes(run, spaces),
        journal=journal,
        key=keyring.key(run, "learner", options.key),
        port=port,
        reports=logs.reports(),
    )
    return UnrollReceiver(
        make_end,
        [make_batch() for _ in range(run.learner.prefetch + 1)],
        layout=layout,
        recorder=recorder,
    )


def recorder(
    run: run_file.Run, options: Options, ranks: Ranks, spaces: Spaces, *, fresh: bool
) -> Recorder | None:
    """Returns the recorder, if one is wanted; None for a continued run: a replay needs its
    beginning."""
    if not options.record:
        return None
    if not fresh:
        log.warning("not recorded: the run is continued, and a recording begins with it")
        return None
    return Recorder(
        options.out,
        rank=ranks.rank,
        world=ranks.world,
        run=run_file.effective(run),
        spaces=spaces.digest(),
    )


def target(run: run_file.Run, spaces: Spaces, model: Any, device: torch.device) -> Any:
    """Returns appo's target network, a copy of the model; None for other algorithms."""
    if run.algorithm.name != "appo":
        return None
    copied = build(run.model, spaces, seed=run.run.seed).to(device)
    copied.load_state_dict(model.state_dict())
    return copied


def gap_check(run: run_file.Run, spaces: Spaces) -> LogProbGap:
    return LogProbGap(
        build(run.model, spaces, seed=0),
        spaces,
        keep=run.pacing.max_lag + 4,
        envs=run.unroll.envs,
        previous=run.model.previous,
    )


def serve_metrics(registry: Any, run: run_file.Run, options: Options, ranks: Ranks) -> int:
    """Serves this rank's metrics; returns the port that the broker may tell Prometheus, 0 =
    none."""
    http.set_run_info(registry, run=run.run.name, algorithm=run.algorithm.name, env=run.env.id)
    port = options.metrics_port
    if port:
        port += ranks.rank
    port = http.serve(registry, host=options.metrics_host, port=port, healthy=lambda: "")
    if port is not None:
        log.info("metrics at port %d", port)
    return http.advertised_port(options.metrics_host, port, options.broker)
