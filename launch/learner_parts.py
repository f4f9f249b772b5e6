"""Builds the parts of a learner rank from its run and its command line."""

import functools
import logging
from typing import Any

import torch

from broker.journal import Journal
from broker.learner_end import LearnerEnd
from launch import config, keyring, logs, process, web, weight
from launch.learner_options import Options
from learner.batch import Batch
from learner.feed import Feed
from learner.gap import GapCheck
from learner.models.build import build
from learner.ranks import Ranks
from learner.record import Recorder
from learner.spaces import Spaces

log = logging.getLogger(__name__)


def feed(
    run: config.Run,
    options: Options,
    ranks: Ranks,
    spaces: Spaces,
    layout: str,
    device: torch.device,
    journal: Journal,
    recorder: Recorder | None,
    port: int,
) -> Feed:
    length, envs = run.unroll.length, run.unroll.envs
    name, inc = f"learner-{ranks.rank}", process.incarnation()
    logs.about(inc=inc, name=name)
    make_batch = functools.partial(
        Batch, spaces, length=length, envs=envs, unrolls=run.pacing.batch_unrolls // ranks.world,
        pinned=device.type == "cuda", memory=run.model.memory, previous=run.model.previous,
        largest=run.unroll.largest,
    )  # fmt: skip
    make_end = functools.partial(
        LearnerEnd,
        options.broker,
        name=name,
        inc=inc,
        rank=ranks.rank,
        world=ranks.world,
        group=ranks.same([inc])[0],
        take_over=options.take_over,
        # Whoever asks to resume an empty folder was told so, and goes on.
        fresh=options.fresh or options.resume,
        run=run.run.name,
        shared=config.shared(run),
        spaces=(spaces.digest(), str(spaces)),
        unroll_bytes=weight.unroll_bytes(run, spaces),
        journal=journal,
        key=keyring.key(run, "learner", options.key),
        port=port,
        reports=logs.reports(),
    )
    return Feed(
        make_end,
        [make_batch() for _ in range(run.learner.prefetch + 1)],
        layout=layout,
        recorder=recorder,
    )


def recorder(
    run: config.Run, options: Options, ranks: Ranks, spaces: Spaces, *, fresh: bool
) -> Recorder | None:
    """A run can be gone through again only from its beginning."""
    if not options.record:
        return None
    if not fresh:
        log.warning("not recorded: the run is continued, and a recording begins with it")
        return None
    return Recorder(
        options.out, rank=ranks.rank, world=ranks.world, run=config.effective(run),
        spaces=spaces.digest(),
    )  # fmt: skip


def target(run: config.Run, spaces: Spaces, model: Any, device: torch.device) -> Any:
    """Returns appo's target network, a copy of the model; None for other algorithms."""
    if run.algorithm.name != "appo":
        return None
    copied = build(run.model, spaces, seed=run.run.seed).to(device)
    copied.load_state_dict(model.state_dict())
    return copied


def gap_check(run: config.Run, spaces: Spaces) -> GapCheck:
    return GapCheck(
        build(run.model, spaces, seed=0), spaces, keep=run.pacing.max_lag + 4,
        envs=run.unroll.envs, previous=run.model.previous,
    )  # fmt: skip


def serve_metrics(registry: Any, run: config.Run, options: Options, ranks: Ranks) -> int:
    """The port that the broker may tell Prometheus; 0 = none."""
    web.says_run(registry, run=run.run.name, algorithm=run.algorithm.name, env=run.env.id)
    port = options.metrics_port
    if port:
        port += ranks.rank
    port = web.serve(registry, host=options.metrics_host, port=port, healthy=lambda: "")
    if port is not None:
        log.info("metrics at port %d", port)
    return web.told(options.metrics_host, port, options.broker)
