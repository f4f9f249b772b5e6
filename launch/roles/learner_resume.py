"""The state that a learner goes on from: its checkpoint, its clock, its run, the version that the
broker knows; and whether anything is left to train."""

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.broker.errors import DivergedError, UserError
from headrace.launch.config import differences, run_file, starts
from headrace.launch.config.run_sections import StopSection
from headrace.launch.results import learning_curve, loaded_run
from headrace.launch.roles import learner_report
from headrace.launch.roles.options import LearnerOptions
from headrace.learner import train_state
from headrace.learner.batches.receiver import UnrollReceiver
from headrace.learner.checkpoints import checkpoint
from headrace.learner.checkpoints.manifest import MANIFEST
from headrace.learner.learner_config import LearnerConfig
from headrace.learner.models.model import Model
from headrace.learner.models.population.population import Population
from headrace.learner.progress import Progress
from headrace.learner.ranks import Facts, Ranks, RanksError
from headrace.learner.train_parts import Goal, Turns

log = logging.getLogger(__name__)


def checkpoint_of(
    run: run_file.Run, options: LearnerOptions, identity: dict[str, Any], model: Model
) -> checkpoint.Checkpoint | None:
    """Returns the newest good checkpoint, if it was asked for and fits."""
    folder = options.out / "checkpoints"
    if not options.resume:
        if starts.has_checkpoints(options.out):
            raise run_file.ConfigError(
                f"{options.out} holds a run already: continue it with --resume,"
                " or choose another folder with --out"
            )
        return None
    here = differences.Origin(**identity, optimiser=run.learner.optimiser)

    def usable(found: checkpoint.Checkpoint) -> None:
        there = differences.Origin(
            found.entry(dict[str, dict[str, Any]], "identity", "shared"),
            found.entry(str, "identity", "spaces"),
            found.entry(str, "optimiser_name"),
        )
        differences.refuse_another(found.path, there, here)
        train_state.check(found, model, target=run.algorithm.name == "appo")

    found = checkpoint.load_latest(folder, usable)
    if found is None:
        log.info("nothing to resume in %s; starting from the beginning", options.out)
    return found


def restore_progress(progress: Progress, found: checkpoint.Checkpoint, run: run_file.Run) -> None:
    """Restores the counters; what was adapted from another algorithm.kl_coef than the run has now
    is forgotten."""
    progress.restore(found.state["progress"])
    trained_by = found.state["identity"]["shared"]["algorithm"]
    if trained_by.get("kl_coef") != run.algorithm.kl_coef:
        progress.kl_coef = None
    log.info("continues from %s", found.path)


def first_weights(model: Model, config: LearnerConfig, *, seed: int) -> None:
    """Draws what the policies of a population differ by, if it is one; then gives the model the
    weights of the run that learner.warm_start names, where name and shape are the same."""
    if isinstance(model, Population):
        model.spread(config.spread, seed)
    if not config.warm_start:
        return
    source = Path(config.warm_start)
    try:
        one = (source / MANIFEST).is_file()
        found = checkpoint.load(source) if one else loaded_run.find_checkpoint(source, None)
    except UserError as error:
        raise run_file.ConfigError(f"learner.warm_start: {error}") from error
    there, here = found.tensors.get("model", {}), model.state_dict()
    fit = {
        name: there[name]
        for name, own in here.items()
        if name in there and (there[name].shape, there[name].dtype) == (own.shape, own.dtype)
    }
    others = [
        f"{name} is {list(own.shape)}, there {list(there[name].shape) if name in there else 'none'}"
        for name, own in here.items()
        if name not in fit
    ]
    if not fit.keys() & dict(model.named_parameters()):
        raise run_file.ConfigError(
            f"learner.warm_start: no layer of {found.path} fits this network: {others[0]}"
        )
    model.load_state_dict({**here, **fit})
    words = f"; new are {'; '.join(others)}" if others else ""
    # Seen in `headrace train`, too, whose learner says warnings alone.
    log.warning("begins with %d of %d tensors of %s%s", len(fit), len(here), found.path, words)


def refuse_diverged(start: starts.Start, ranks: Ranks) -> None:
    """Raises DivergedError where this start would repeat one that diverged, as rank 0 sees it.
    torchrun starts its ranks again without asking."""
    again = start.resume or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
    line = starts.diverged(start) if again and ranks.rank == 0 else ""
    if ranks.same([bool(line)])[0]:
        raise DivergedError(line or "training has diverged; rank 0 says how")


def keep_start(start: starts.Start, ranks: Ranks) -> None:
    """Writes the run's files, as rank 0. A full disk does not end a run that goes on; one that
    begins needs its folder."""
    if ranks.rank:
        return
    try:
        start.keep()
        (start.out / "learner.json").unlink(missing_ok=True)  # of a process that is gone
    except OSError as error:
        if start.changes is None:
            raise run_file.ConfigError(
                f"cannot write the run's folder: {error}; choose another with --out"
            ) from error
        log.error("the run's file is not written, it tells of an earlier start: %s", error)
    start.log_changes()


def goal_of(stop: StopSection) -> Goal:
    return Goal(
        stop.return_,
        stop.steps,
        stop.seconds,
        by_evaluation=bool(stop.evaluated),
        metric="" if stop.evaluated or stop.metric == "training" else stop.metric,
    )


def complete(
    run: run_file.Run, out: Path, ranks: Ranks, progress: Progress, *, began: float
) -> bool:
    """Returns True, and logs it, when there is nothing left to train, as rank 0 sees it."""
    goal = goal_of(run.stop)
    seconds = time.monotonic() - began
    # Where nothing was trained nothing is complete: the limit is told once more, as at first.
    reason = goal.met(progress, seconds) if progress.trained_steps else ""
    if not ranks.same([bool(reason)])[0]:
        return False
    if ranks.rank == 0:
        learner_report.write(out, progress, reason, seconds=seconds, world=ranks.world)
        log.info(
            "%s",
            starts.complete(
                reason,
                run.stop,
                steps=progress.trained_steps,
                mean=progress.evaluated if goal.by_evaluation else progress.mean_of(goal.metric),
                seconds=seconds,
            ),
        )
    return True


def clock_began_at(options: LearnerOptions, ranks: Ranks, started: float) -> float:
    """Returns the run's clock at 0, by time.monotonic: a continued run's clock goes on from its
    history."""
    if options.began is not None:
        return options.began
    elapsed = 0.0
    if ranks.rank == 0:
        history = options.out / "history.jsonl"
        if not options.resume:  # of a start that never came to a checkpoint
            history.unlink(missing_ok=True)
            (options.out / "episodes.jsonl").unlink(missing_ok=True)
        elapsed = learning_curve.ended_at(history)
    return started - ranks.same([round(1000 * elapsed)])[0] / 1000


def wait_for_broker(
    feed: UnrollReceiver,
    ranks: Ranks,
    progress: Progress,
    stopping: Callable[[], bool],
    patience: Callable[[], float],
) -> Turns[bool]:
    """Waits until every rank is welcome; all continue at the version that rank 0 was told. Returns
    False when asked to stop before. `patience`: most seconds of a turn that wait."""
    version: int | None = None
    while True:
        if version is None:
            version = feed.wait_for_welcome(timeout_s=patience())
        try:
            facts = ranks.exchange(Facts(version is not None, stop=stopping()))
        except RanksError:
            feed.check(within_s=1.0)  # all ranks were refused, and another one ended first
            raise
        if facts.stop:
            return False
        if facts.ready:
            break
        yield False
    told = ranks.same([version or 0])[0]
    if told > 0 and not progress.version and ranks.rank == 0:
        log.warning(
            "begins with new weights at version %d: what this run has learned until now is"
            " forgotten",
            told,
        )
    if told > progress.version:
        # Samplers know other weights by that number: ours get one that nobody has seen.
        progress.version = told + 1
    return True
