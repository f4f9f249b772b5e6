"""What a learner says at its end: learner.json for the summary, a line for the samplers."""

import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from broker import durable
from launch import config, machine, process
from learner.progress import Progress

log = logging.getLogger(__name__)


def write(
    folder: Path, progress: Progress, reason: str, *, seconds: float,
    first_train_s: float | None = None, device: str = "", world: int = 1,
    phase_seconds: Mapping[str, float] = MappingProxyType({}),
) -> None:  # fmt: skip
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


def farewell(reason: str, progress: Progress) -> str:
    """Why the run ends, in words for the samplers."""
    words = {
        "return": "the return goal was reached",
        "steps": "the step limit was reached",
        "seconds": "the time limit was reached",
        "stopped": "stopped by request",
    }
    return f"{words.get(reason, 'the learner failed')} after {progress.trained_steps} steps"


def status(run: config.Run, progress: Progress, reason: str) -> int:
    """Returns the exit status of a learner that ended in order."""
    if reason not in ("steps", "seconds"):
        return process.OK
    if not progress.trained_steps:
        log.warning(
            "nothing was trained before stop.seconds = %s was over: no batch of %d unrolls came"
            " in; do samplers run, and what do they say?",
            run.stop.seconds, run.pacing.batch_unrolls,
        )  # fmt: skip
        return process.LIMIT
    return process.OK if run.stop.return_ is None else process.LIMIT
