"""The train loop's whole state, to disk and back."""

import errno
import logging
import os
import time
from pathlib import Path
from typing import Any

import msgpack
import msgspec
import torch

from learner import checkpoint, optimise
from learner.pieces import Pieces

log = logging.getLogger(__name__)


def save(p: Pieces, optimiser: torch.optim.Optimizer) -> None:
    """Everything that a restart needs. All ranks take part: each knows what it trained."""
    before = time.perf_counter()
    windows: list[Any] = []
    for packed in p.ranks.gather(msgpack.packb([_plain(w) for w in p.feed.windows()])):
        windows += msgpack.unpackb(packed)
    if p.ranks.rank == 0:
        tensors, meta = checkpoint.optimiser_state(optimiser)
        groups = {"model": dict(p.model.state_dict()), "optimiser": tensors}
        groups["rng"] = checkpoint.rng_state()
        if p.target is not None:
            groups["target"] = dict(p.target.state_dict())
        state = {
            "identity": p.identity,
            "spaces": msgspec.to_builtins(p.spaces, str_keys=True),
            "progress": p.progress.state(),
            "optimiser": meta,
            "optimiser_name": p.config.optimiser,
            "windows": windows,
        }
        try:
            checkpoint.save(
                p.folder / "checkpoints", step_version=p.progress.version, tensors=groups,
                state=msgspec.msgpack.decode(msgspec.msgpack.encode(state)), keep=p.saving.keep,
            )  # fmt: skip
            p.metrics.checkpoints.labels("ok").inc()
            p.metrics.last_checkpoint.set(time.time())
        except checkpoint.CheckpointError as error:
            # The one before still stands; an operator must make room, training need not stop.
            p.metrics.checkpoints.labels("failed").inc()
            log.error("%s", error)
    p.metrics.phase["checkpoint"].inc(time.perf_counter() - before)


def restore(p: Pieces, optimiser: torch.optim.Optimizer) -> None:
    """Optimiser, target network and dice; the model and the counters are back already."""
    assert p.resume is not None
    tensors, state = p.resume.tensors, p.resume.state
    optimise.restore(optimiser, tensors["optimiser"], state["optimiser"])
    if p.target is not None:
        p.target.load_state_dict(tensors["target"])
    if p.ranks.rank == 0:  # the others throw new dice: theirs are not in the checkpoint
        checkpoint.restore_rng(tensors["rng"])
        checkpoint.set_aside(p.folder / "checkpoints", before=p.resume.path)


def append(path: Path, line: str) -> None:
    """A whole line, or OSError and none of it: a full disk takes half of one, and what is written
    once there is room again would stand behind that half."""
    with path.open("ab", buffering=0) as file:
        before, whole = file.tell(), line.encode() + b"\n"
        if file.write(whole) < len(whole):
            file.truncate(before)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def _plain(window: Any) -> list[Any]:
    inc, stream, spans = window
    return [inc, stream, [list(span) for span in spans]]
