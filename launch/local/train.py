"""Checks and prepares what `headrace train` needs, before the processes of a run start here."""

import logging
import os
import tempfile
from dataclasses import replace
from pathlib import Path

from headrace.broker.transport import several
from headrace.launch.config import keyring, starts
from headrace.launch.config.run_file import ConfigError
from headrace.launch.local import run_folder
from headrace.launch.local.child_plans import evaluates, web_port
from headrace.launch.local.options import Options
from headrace.launch.local.processes import Processes
from headrace.launch.process import folder_lock, logs, runtime, shown_tracebacks
from headrace.launch.sinks.sink import check_sink

log = logging.getLogger(__name__)

# What they chose where a run says auto is worth a line beside the view.
_CHOOSERS = (
    "headrace.actors.stepping.choose",
    "headrace.launch.roles.learner_parts",
    "headrace.launch.roles.learner_report",
)


def train(start: starts.Start, options: Options) -> int:
    """Trains a run on this machine; returns the exit status."""
    started, asked = runtime.started_at(), runtime.StopRequested()
    run, out = start.run, start.out
    logs.start("train", quiet=True)
    if not options.quiet:
        for chooser in _CHOOSERS:
            logging.getLogger(chooser).setLevel(logging.INFO)
    # Before numpy and torch are imported: one thread each, or their pools fight over the cores.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    if options.endpoint and run.broker.shards > 1:
        raise ConfigError(
            f"broker.shards is {run.broker.shards}: of several policies each has one broker"
        )
    if not options.endpoint:
        run_folder.check(out, resume=start.resume)
    options = replace(options, evaluate=evaluates(run, options.evaluate), web=web_port(options.web))
    evaluators = ["evaluator"] * bool(options.evaluate)
    for name in run.log.sinks:
        check_sink(name)
    for role in ("broker", "learner", "actor", "watcher", *evaluators):
        keyring.key(run, role, None)  # each process reads its own; what is wrong is said now
    with folder_lock.lock_folder(out, "train", patience_s=0.0):
        if not options.elsewhere:
            with folder_lock.lock_folder(out, "learner-0"):
                pass  # a learner of a run that has just been killed has ended by now
        if start.resume and (complete := starts.finished(run.stop, out)):
            log.warning("%s", complete)
            return runtime.OK
        if start.resume and (diverged := starts.diverged(start)):
            log.error("%s", diverged)
            return runtime.DIVERGED
        if not options.endpoint:
            run_folder.prepare(start)
        # A socket's path must be short, so it does not lie in the run's folder.
        with tempfile.TemporaryDirectory(prefix="headrace-", ignore_cleanup_errors=True) as sockets:
            first = options.endpoint or f"ipc://{sockets}/broker"
            brokers = [several.of_shard(first, shard) for shard in range(run.broker.shards)]
            with shown_tracebacks.shared(Path(sockets)):
                return Processes(start, options, brokers, started=started, asked=asked).run()
