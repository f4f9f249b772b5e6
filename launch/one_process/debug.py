"""`headrace train --debug`: the sampler and the learner take turns in one thread, for a debugger.

breakpoint() in an environment, a wrapper, an encoder or a loss stops everything. An exception there
is not handled: it ends the run as it was raised, so a debugger can stop at it, too.
"""

import bdb
import logging
import sys

import torch

from headrace.actors import users_code
from headrace.actors.envs import envpool
from headrace.actors.policies.shared_stepper import PolicyStepper
from headrace.actors.stepping.inline import InlineStepper
from headrace.actors.stepping.stepper import EnvFailure
from headrace.launch.config import run_file, starts
from headrace.launch.local import run_folder
from headrace.launch.local.child_plans import actor_seed
from headrace.launch.one_process import without_broker
from headrace.launch.one_process.lagged_source import LaggedSource
from headrace.launch.process import folder_lock, logs, runtime
from headrace.launch.roles import learner_report
from headrace.learner.train import train
from headrace.learner.train_parts import to_end

log = logging.getLogger(__name__)


def debug(start: starts.Start, *, record: bool, evaluate: bool) -> int:
    """Trains a run here, each batch by the newest weights; returns the exit status."""
    run, out = start.run, start.out
    if wrong := _unable(start, record=record, evaluate=evaluate):
        raise run_file.ConfigError(wrong)
    run_folder.check(out, resume=start.resume)
    logs.start("train")
    torch.set_num_threads(1)
    with folder_lock.lock_folder(out, "train", patience_s=0.0):
        run_folder.prepare(start)
        log.info("one process and one thread, no broker; folder %s", out)
        try:
            return _train(run, start)
        except BaseException as error:
            if _left(error):
                log.warning("left before the end; nothing is kept of what came after a checkpoint")
                return runtime.LIMIT
            theirs = users_code.raised_by(error)
            if theirs is None or theirs is error:
                raise
            raise theirs from None  # our words for it, a line, were raised elsewhere


def _train(run: run_file.Run, start: starts.Start) -> int:
    try:
        source = LaggedSource(run, lag=0, seed=actor_seed(run.run.seed, 0))
        parts = without_broker.parts(run, source, start.out, seed=run.run.seed)
    except ValueError as error:  # of a network that cannot be made
        raise run_file.ConfigError(str(error)) from error
    stepper = source.stepper
    if isinstance(stepper, PolicyStepper):
        stepper = stepper.whole
    if isinstance(stepper, InlineStepper):
        stepper.on_failure = _raise
    reason = source.serve(lambda: to_end(train(parts)))
    seconds = parts.clock()
    learner_report.write(start.out, parts.progress, reason, seconds=seconds, device="cpu")
    mean = parts.progress.mean_return()
    words = learner_report.leave_text(reason, parts.progress)
    log.info("%s%s", words, "" if mean is None else f"; return {mean:.1f}")
    return learner_report.status(run, parts.progress, reason)


def _unable(start: starts.Start, *, record: bool, evaluate: bool) -> str:
    """Returns what --debug cannot do of what was asked; "" = nothing."""
    if start.resume:
        return "--debug begins a run; leave out --resume"
    if record:
        return "--debug keeps no recording; leave out --record"
    if evaluate or start.run.stop.evaluated:
        return "--debug plays no evaluations; leave out --evaluate, and a stop.metric of one"
    if envpool.is_envpool(start.run.env):
        return f"--debug: {start.run.env.id} steps in threads of its own, where no breakpoint works"
    return ""


def _raise(_failure: EnvFailure) -> None:
    """Raises what is being handled, instead of going on with a new environment."""
    error = sys.exception()
    assert error is not None
    raise error


def _left(error: BaseException | None) -> bool:
    """Tells whether somebody left: ctrl-C, or `quit` in the debugger, perhaps below other words."""
    while error is not None and not isinstance(error, KeyboardInterrupt | bdb.BdbQuit):
        error = error.__cause__ or error.__context__
    return error is not None
