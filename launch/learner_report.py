"""What a learner says at its end: learner.json for the summary, a line for the samplers."""

import json
import logging
import time

from broker import durable
from launch import machine
from learner.pieces import Pieces
from learner.progress import Progress

log = logging.getLogger(__name__)


def write(pieces: Pieces, reason: str) -> None:
    """Into the run's folder."""
    progress = pieces.progress
    report = {
        "stop_reason": reason or "failed",
        "first_train_s": pieces.first_train_s,
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
        "device": str(pieces.device),
        "world": pieces.ranks.world,
        "phase_seconds": pieces.metrics.phase_seconds(),
        "machine": machine.describe(),
        "ended_at": time.time(),
    }
    try:
        durable.write(pieces.folder / "learner.json", json.dumps(report))
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
