"""`headrace replay RUN_DIR`: trains again on what a run recorded, and compares the weights.

On a CPU of the same kind, with the same packages, they are equal to the last bit. Where they are
not, training itself has changed: nothing else differs.
"""

import contextlib
import logging
import os
import tempfile
import time
from pathlib import Path

import torch
from msgspec import structs
from torch import Tensor

from headrace.actors.envs.make import probe
from headrace.actors.envs.registering import episode_limit
from headrace.launch.config import algorithm_defaults, run_file
from headrace.launch.process import runtime
from headrace.launch.results import loaded_run
from headrace.launch.web import http
from headrace.learner.algorithms.curriculum import Curriculum
from headrace.learner.batches.make_batch import make_batch
from headrace.learner.batches.recording import Opened, RecordedSource, opening, path_of
from headrace.learner.checkpoints import checkpoint
from headrace.learner.checkpoints.checkpoint import Checkpoint, TensorGroups
from headrace.learner.checkpoints.config import CheckpointConfig
from headrace.learner.metrics import LearnerMetrics
from headrace.learner.models.build import build, chosen_kind
from headrace.learner.models.population.population import Population
from headrace.learner.progress import Progress
from headrace.learner.ranks import Ranks
from headrace.learner.spaces import Spaces
from headrace.learner.train import train
from headrace.learner.train_parts import Goal, TrainParts, to_end

log = logging.getLogger(__name__)

# The results of training; a checkpoint also holds the states of random generators.
_COMPARED = ("model", "target", "optimiser")


def replay(run_dir: Path) -> int:
    """Returns 0 if the weights are the same, 1 if not; ConfigError if there is nothing to
    replay."""
    final = loaded_run.find_checkpoint(run_dir, "newest", _steps)
    newer = _newest_version(run_dir) > final.version
    log.info(
        "goes to optimiser step %d and compares with %s, %s",
        _steps(final),
        final.path,
        "not the end of the run: a newer checkpoint is damaged" if newer else "where the run ended",
    )
    with tempfile.TemporaryDirectory(prefix="headrace-replay-") as folder:
        return _replay(run_dir, Path(folder), final)


def _replay(run_dir: Path, folder: Path, final: Checkpoint) -> int:
    path = path_of(run_dir, int(os.environ.get("RANK", "0")))
    opened = opening(path)
    run = _run(opened, folder)
    torch.set_num_threads(opened.threads)
    cuda = run.learner.device != "cpu" and torch.cuda.is_available()
    with contextlib.closing(Ranks(timeout_s=run.learner.rank_timeout_s, cuda=cuda)) as ranks:
        if ranks.world != opened.world:
            raise run_file.ConfigError(
                f"{opened.world} ranks recorded this, and here are {ranks.world}: torchrun"
                f" --nproc-per-node {opened.world} -m headrace.launch.replay {run_dir}"
            )
        spaces = probe(run.env)
        if spaces.digest() != opened.spaces:
            raise run_file.ConfigError(f"{run.env.id} has other spaces here than in the recording")
        pieces, feed = _pieces(run, spaces, ranks, path, folder, until=_steps(final), cuda=cuda)
        to_end(train(pieces))
        if ranks.rank:
            return runtime.OK
        done = pieces.progress.learner_steps
    if done != _steps(final):
        why = "the run went on without it" if feed.closed else "it was cut short"
        return _not_identical(
            f"the recording ends at optimiser step {done} of {_steps(final)}: {why}"
        )
    own = checkpoint.load_latest(folder / "checkpoints")
    assert own is not None
    difference = first_difference(final.tensors, own.tensors)
    if difference:
        return _not_identical(f"after {done} optimiser steps {difference}")
    count = sum(len(group) for name, group in own.tensors.items() if name in _COMPARED)
    print(f"identical: {count} tensors after {done} optimiser steps")  # noqa: T201
    return runtime.OK


def first_difference(there: TensorGroups, here: TensorGroups) -> str:
    """Finds the first tensor that differs, and by how much; "" = every bit is the same."""
    pairs = [
        (f"{group}.{name}", tensor, here.get(group, {}).get(name))
        for group in _COMPARED
        for name, tensor in there.get(group, {}).items()
    ]
    other = [pair for pair in pairs if not _same(pair[1], pair[2])]
    if not other:
        return ""
    name, before, now = other[0]
    share = f"(first of {len(other)} out of {len(pairs)} tensors)"
    if now is None or now.shape != before.shape or now.dtype != before.dtype:
        return f"{name} is another kind of tensor {share}"
    off = (before.double() - now.double()).abs().max()
    return f"{name} differs by up to {float(off):.3g} {share}"


def _same(there: Tensor, here: Tensor | None) -> bool:
    """Compares bit by bit: 0.0 differs from -0.0, and NaN equals itself."""
    if here is None or there.shape != here.shape or there.dtype != here.dtype:
        return False
    return there.numpy().tobytes() == here.numpy().tobytes()


def _pieces(
    run: run_file.Run,
    spaces: Spaces,
    ranks: Ranks,
    path: Path,
    folder: Path,
    *,
    until: int,
    cuda: bool,
) -> tuple[TrainParts, RecordedSource]:
    """Builds the parts of training as the learner does, but with a recording instead of a
    broker."""
    device = torch.device("cuda", ranks.local_rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    unrolls = run.pacing.batch_unrolls // ranks.world
    batch = make_batch(spaces, run.unroll, run.model, unrolls=unrolls, pinned=cuda)
    feed = RecordedSource(path, batch)
    progress = Progress(run.env.metrics, population=run.env.population)
    model = build(run.model, spaces, seed=run.run.seed).to(device)
    if isinstance(model, Population):
        model.spread(run.learner.spread, run.run.seed)
    target = None
    if run.algorithm.name == "appo":
        target = build(run.model, spaces, seed=run.run.seed).to(device)
    algorithm, config, _ = algorithm_defaults.settled(
        run,
        kind=chosen_kind(run.model, spaces),
        limit=episode_limit(run.env),
        numbers=spaces.action.numbers,
    )
    pieces = TrainParts(
        algorithm=algorithm,
        config=structs.replace(config, graph=False, compile=False),  # as it was recorded
        saving=CheckpointConfig(every_s=1e9),
        goal=Goal(None, None, None),
        ranks=ranks,
        feed=feed,
        model=model,
        target=target,
        gap=None,
        progress=progress,
        metrics=LearnerMetrics(http.registry("replay")),
        device=device,
        folder=folder,
        spaces=spaces,
        previous=run.model.previous,
        identity={},
        resume=None,
        stopping=lambda: feed.ended or progress.learner_steps >= until,
        seed=run.run.seed,
        started=time.monotonic(),
        curriculum=Curriculum(run.env.curriculum, run.env.settings, model),
    )
    return pieces, feed


def _newest_version(run_dir: Path) -> int:
    """Returns the highest version that has a checkpoint, whole or not."""
    names = [path.name[:12] for path in (run_dir / "checkpoints").iterdir()]
    return max(int(name) for name in names if name.isdigit())


def _steps(final: Checkpoint) -> int:
    return final.entry(int, "progress", "learner_steps")


def _run(opened: Opened, folder: Path) -> run_file.Run:
    """Loads the run as it was recorded, even if its own file has changed since."""
    toml = folder / "run.toml"
    toml.write_text(opened.run)
    return run_file.load(str(toml))


def _not_identical(difference: str) -> int:
    print(f"not identical: {difference}")  # noqa: T201
    return runtime.OUR_FAULT
