"""A learner's reports: to a watchdog while it runs; at its end learner.json for the summary, and a
line for the samplers."""

import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from headrace.broker import durable
from headrace.launch.config import run_file
from headrace.launch.process import machine, runtime
from headrace.launch.process.sd_notify import WatchdogReading
from headrace.learner.batches.receiver import UnrollReceiver
from headrace.learner.metrics import LearnerMetrics
from headrace.learner.progress import Progress

log = logging.getLogger(__name__)


def write(
    folder: Path,
    progress: Progress,
    reason: str,
    *,
    seconds: float,
    first_train_s: float | None = None,
    device: str = "",
    world: int = 1,
    phase_seconds: Mapping[str, float] = MappingProxyType({}),
) -> None:
    """Writes learner.json into the run's folder. `seconds`: the run's clock at its end."""
    report = {
        "stop_reason": reason or "failed",
        "seconds": round(seconds, 3),
        "first_train_s": first_train_s,
        "trained_steps": progress.trained_steps,
        "learner_steps": progress.learner_steps,
        "version": progress.version,
        "trained_steps_per_s": progress.rate(),
        "episodes": progress.episodes,
        "mean_return": progress.mean_return(),
        "solved_at_s": progress.solved_at_s,
        "solved_at_steps": progress.solved_at_steps,
        "lag": progress.lag(),
        "nonfinite": progress.nonfinite,
        "reuse": progress.reuse(),
        "device": device,
        "world": world,
        "phase_seconds": dict(phase_seconds),
        "machine": machine.describe(),
        "ended_at": time.time(),
    }
    try:
        durable.write(folder / "learner.json", json.dumps(report))
    except OSError as error:  # a full disk must not make a bad end of a good one
        log.error("the learner's report is not written: %s", error)


def watchdog_reading(
    feed: UnrollReceiver, progress: Progress, metrics: LearnerMetrics
) -> WatchdogReading:
    """Returns the watchdog's reading of a learner rank: it gets on, or there is no work for it.

    Read by a thread of its own: both loops must turn, the receiver's, and once there is one the
    train loop. Without a batch that turns twice a second.
    """
    link, welcomed = feed.end.link, feed.end.welcome_version is not None
    train_loop = metrics.phase_seconds()["wait"] if welcomed else link.loop_turns
    unheard = "" if link.welcome is not None else f"no broker answers at {link.endpoint}; "
    return WatchdogReading(
        ready=welcomed,
        moved=(progress.learner_steps, progress.nonfinite),
        turns=(train_loop, link.loop_turns),
        idle=True,
        text=f"{unheard}version {progress.version}",
        steps=progress.trained_steps,
    )


def leave_text(reason: str, progress: Progress) -> str:
    """Returns why the run ends, in words for the samplers."""
    words = {
        "return": "the return goal was reached",
        "steps": "the step limit was reached",
        "seconds": "the time limit was reached",
        "stopped": "stopped by request",
    }
    return f"{words.get(reason, 'the learner failed')} after {progress.trained_steps} steps"


def status(run: run_file.Run, progress: Progress, reason: str) -> int:
    """Returns the exit status of a learner that ended in order."""
    if reason not in ("steps", "seconds"):
        return runtime.OK
    if not progress.trained_steps:
        log.warning(
            "nothing was trained before stop.seconds = %s was over: no batch of %d unrolls came"
            " in; do samplers run, and what do they say?",
            run.stop.seconds,
            run.pacing.batch_unrolls,
        )
        return runtime.LIMIT
    return runtime.OK if run.stop.return_ is None else runtime.LIMIT
