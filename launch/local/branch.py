"""`headrace branch`: a new folder in which a run goes on from a checkpoint of another, its twin,
by other settings. What the other has learned is its past; the other folder is only read.

    OUT/run.toml, OUT/starts/   the other's run with what --set changes; what has changed, in words
    OUT/history.jsonl           the other's, up to the checkpoint
    OUT/checkpoints/VERSION/    the checkpoint
"""

import dataclasses
import json
import logging
from collections.abc import Sequence
from pathlib import Path

from headrace.broker import durable
from headrace.launch.config import run_file, starts, unused_keys
from headrace.launch.process import runtime
from headrace.launch.results import learning_curve, loaded_run

log = logging.getLogger(__name__)


def branch(source: Path, out: Path, *, version: int | None, sets: Sequence[str]) -> int:
    """Makes the folder; ConfigError where it cannot."""
    if starts.has_checkpoints(out) or (out / starts.RUN).exists():
        raise run_file.ConfigError(f"{out} holds a run already; name another folder")
    start = starts.branch(source, sets, out)
    found = loaded_run.find_checkpoint(source, "newest" if version is None else str(version))
    if "progress" not in found.state:
        raise run_file.ConfigError(
            f"{found.path} holds an evaluator's weights alone; begin a run with them:"
            " --set learner.warm_start"
        )
    changes = start.changes or ()
    try:
        dataclasses.replace(start, changes=(f"goes on from {found.path}", *changes)).keep()
        past = learning_curve.read(source / "history.jsonl")
        lines = (json.dumps(line) for line in past if line.get("version", 0) <= found.version)
        durable.write(out / "history.jsonl", "".join(f"{line}\n" for line in lines))
        _copy(found.path, out / "checkpoints" / found.path.name[:12])  # last: now it can go on
    except OSError as error:
        raise run_file.ConfigError(f"cannot make the folder {out}: {error}") from error
    unused_keys.warn(start.run)
    log.info("%s goes on from %s", out, found.path)
    for change in changes:
        log.info("with another %s", change)
    log.info("train it: headrace train %s --out %s --resume", out / starts.RUN, out)
    return runtime.OK


def _copy(folder: Path, to: Path) -> None:
    """Copies a folder of files; whole or not at all."""
    part = to.with_suffix(".tmp")
    part.mkdir(parents=True)
    for path in folder.iterdir():
        durable.put(part / path.name, [path.read_bytes()])
    durable.commit(part, to)
