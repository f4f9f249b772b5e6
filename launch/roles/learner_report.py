"""A learner's reports: to a watchdog while it runs; at its end learner.json for the summary, and a
line for the samplers."""

import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np

from headrace.broker import durable
from headrace.launch.config import run_file
from headrace.launch.process import runtime
from headrace.launch.process.sd_notify import WatchdogReading
from headrace.launch.results import hardware
from headrace.learner.batches.receiver import UnrollReceiver
from headrace.learner.config import ModelConfig
from headrace.learner.metrics import LearnerMetrics
from headrace.learner.models.build import AUTO, chosen_kind
from headrace.learner.models.model import Model
from headrace.learner.models.normalise import is_number
from headrace.learner.progress import Progress
from headrace.learner.spaces import Spaces

log = logging.getLogger(__name__)


def log_network(config: ModelConfig, spaces: Spaces, model: Model) -> None:
    """Logs what the observation's spaces have decided."""
    if config.kind == AUTO:
        log.info("model.kind = auto: the encoder is %s", chosen_kind(config, spaces))
        for leaf in spaces.observation:
            if is_number(leaf) and len(leaf.shape) >= 2:
                log.warning(
                    "%s %s%s is taken for numbers in a row: an image is uint8 with height, width"
                    " and at most one axis more; if it is one, make it so with a wrapper",
                    leaf.name,
                    np.dtype(leaf.dtype).name,
                    list(leaf.shape),
                )
    if config.normalise_obs and model.normaliser is None:
        log.info("model.normalise_obs does nothing: the observation has no numbers")


def write(
    folder: Path,
    progress: Progress,
    reason: str,
    *,
    seconds: float,
    diagnosis: str = "",
    first_train_s: float | None = None,
    device: str = "",
    world: int = 1,
    phase_seconds: Mapping[str, float] = MappingProxyType({}),
) -> None:
    """Writes learner.json into the run's folder. `seconds`: the run's clock at its end."""
    report = {
        "stop_reason": reason or "failed",
        "diagnosis": diagnosis or None,
        "seconds": round(seconds, 3),
        "first_train_s": first_train_s,
        "trained_steps": progress.trained_steps,
        "learner_steps": progress.learner_steps,
        "version": progress.version,
        "trained_steps_per_s": progress.rate(),
        "episodes": progress.episodes,
        "mean_return": progress.mean_return(),
        "mean_length": progress.score.mean_length,
        "metrics": progress.metrics.means,
        "population": progress.population.summary(),
        "evaluated": progress.evaluated,
        "solved_at_s": progress.solved_at_s,
        "solved_at_steps": progress.solved_at_steps,
        "lag": progress.lag(),
        "nonfinite": progress.nonfinite,
        "reuse": progress.reuse(),
        "device": device,
        "world": world,
        "phase_seconds": dict(phase_seconds),
        "machine": hardware.describe(),
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
    ends, welcomed = feed.ends, feed.ends.welcome_version is not None
    train_loop = metrics.phase_seconds()["wait"] if welcomed else ends.loop_turns
    unheard = f"no broker answers at {away}; " if (away := ends.unheard()) else ""
    return WatchdogReading(
        ready=welcomed,
        moved=(progress.learner_steps, progress.nonfinite),
        turns=(train_loop, ends.loop_turns),
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
        "diverged": "training has diverged",
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
    if run.stop.return_ is None:
        return runtime.OK
    if run.stop.evaluated and progress.evaluated is None:
        log.warning(
            'stop.metric is "%s", and no evaluation was heard of that says it: nobody could say'
            " whether stop.return is reached; run headrace evaluate beside the learner, for longer",
            run.stop.metric,
        )
    return runtime.LIMIT
