"""The folder of a run that `headrace train` begins or continues."""

import shutil
from pathlib import Path

from headrace.broker import durable
from headrace.launch.config import starts, unused_keys
from headrace.launch.config.run_file import ConfigError
from headrace.learner.models import named_code


def broker_name(shard: int) -> str:
    """Returns what one of the run's brokers is called."""
    return f"broker-{shard}" if shard else "broker"


def broker_reports(out: Path) -> list[Path]:
    """Returns the reports of the run's brokers that are there."""
    return sorted(out.glob("broker*.json"))


def check(out: Path, *, resume: bool) -> None:
    """Raises ConfigError where a run cannot start in this folder."""
    there = starts.has_checkpoints(out)
    if there and not resume:
        raise ConfigError(
            f"{out} holds a run already: continue it with --resume, or choose another with --out"
        )
    if resume and not there:
        raise ConfigError(f"nothing to resume in {out}: it has no checkpoints; leave out --resume")


def prepare(start: starts.Start) -> None:
    """Writes the run's files, and removes what an earlier run left that does not count any more;
    ConfigError where the folder cannot be written."""
    try:
        _prepare(start)
    except OSError as error:
        raise ConfigError(
            f"cannot write the run's folder: {error}; choose another with --out"
        ) from error


def _prepare(start: starts.Start) -> None:
    out = start.out
    start.keep()
    start.log_changes()
    unused_keys.warn(start.run)
    # Reports of processes that are gone; a resumed run continues its history and its ledger.
    for path in (out / "learner.json", *broker_reports(out), out / "summary.json"):
        path.unlink(missing_ok=True)
    if not start.resume:
        for name in ("history.jsonl", "evaluations.jsonl", "episodes.jsonl", "curve.png"):
            (out / name).unlink(missing_ok=True)
        for name in ("ledger", "best", "record", "sinks", "tensorboard", "code"):
            shutil.rmtree(out / name, ignore_errors=True)
    for name, text in named_code.given_sources().items():
        (out / "code").mkdir(exist_ok=True)
        durable.write(out / "code" / f"{name}.py", text)
