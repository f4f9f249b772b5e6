"""The effect of a run's keys on training: a few versions of made-up batches, then the weights."""

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from unittest import mock

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry
from torch import Tensor, nn

from headrace.launch.config import run_file
from headrace.launch.config.algorithm_defaults import settled
from headrace.learner import progress as progress_module
from headrace.learner import ranks as ranks_module
from headrace.learner.algorithms.curriculum import Curriculum, Moment
from headrace.learner.algorithms.loss_inputs import Loss, LossInputs
from headrace.learner.algorithms.losses import impala
from headrace.learner.batches.batch import Batch
from headrace.learner.batches.receiver import UnrollReceiver
from headrace.learner.metrics import LearnerMetrics
from headrace.learner.models.build import build, chosen_kind
from headrace.learner.progress import Progress
from headrace.learner.ranks import Ranks
from headrace.learner.spaces import (
    DEAD,
    POLICY,
    TERMINATED,
    TRUNCATED,
    Action,
    Leaf,
    Part,
    Spaces,
    discrete,
)
from headrace.learner.step.choice import device_decides, may_compile
from headrace.learner.train import train
from headrace.learner.train_parts import Goal, TrainParts, to_end
from tests.learner import unrolls

# Numbers, categories and an image; a choice and two numbers.
PLAIN = Spaces(
    (Leaf("numbers", "<f4", (3,)), Leaf("kind", "<i8", (), (4,))),
    Action(
        (
            Part(("turn",), "int64", (), (3,), (0,)),
            Part(("push",), "float32", (2,), low=(-1.0, -1.0), high=(1.0, 1.0)),
        )
    ),
)
MANY = Spaces((Leaf("obs", "<f4", (3,)), Leaf(POLICY, "<i8", (), (3,))), discrete(3), population=3)
IMAGE = Spaces((Leaf("obs", "|u1", (40, 40)),), discrete(3))
_VERSIONS = 4


def after_training(spaces: Spaces = PLAIN) -> Callable[[run_file.Run, Path], Any]:
    """The weights, byte by byte."""

    def look(run: run_file.Run, folder: Path) -> Any:
        model = _train(run, spaces, folder).model
        return {name: tensor.numpy().tobytes() for name, tensor in model.state_dict().items()}

    return look


def by_the_device(run: run_file.Run, folder: Path) -> bool:
    """Tells whether the device decides on the steps."""
    return device_decides(_train(run, PLAIN, folder))


def compiles(run: run_file.Run, folder: Path) -> bool:
    """Tells whether the host's steps may be compiled."""
    return may_compile(_train(run, PLAIN, folder))


def shards(run: run_file.Run, folder: Path) -> bool:
    """Tells whether one rank alone says that there is nobody to share its network with."""
    with mock.patch.object(ranks_module.log, "warning") as said:
        _train(run, PLAIN, folder)
    return said.called


def checkpoints(run: run_file.Run, folder: Path) -> list[str]:
    """Those that are left."""
    _train(run, PLAIN, folder)
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def lines(run: run_file.Run, folder: Path) -> int:
    """How many tell of progress."""
    with mock.patch.object(progress_module.log, "info") as said:
        _train(run, PLAIN, folder)
    return said.call_count


def encoder(leaves: tuple[Leaf, ...], rng: torch.Generator, *, units: int = 7) -> nn.Module:
    """For model.kind = module:factory."""
    return _Encoder(leaves[0], rng, units)


def loss(given: LossInputs) -> Loss:
    """For algorithm.loss = module:function."""
    found = impala(given)
    return found._replace(total=-found.total)


def explore(params: NDArray[np.float32], _: int) -> NDArray[np.float32]:
    """For actor.explore = module:function."""
    return params


def harder(moment: Moment) -> dict[str, float]:
    """For env.curriculum = module:function."""
    return {"gravity": 2.0 + moment.version}


class _Encoder(nn.Module):
    def __init__(self, leaf: Leaf, rng: torch.Generator, units: int) -> None:
        super().__init__()
        self.name, self.units = leaf.name, units
        self.weight = nn.Parameter(torch.randn(leaf.shape[0], units, generator=rng))

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        return torch.tanh(obs[self.name] @ self.weight)


class _MadeUp:
    """A feed whose batches depend on their number alone."""

    def __init__(self, batch: Batch, spaces: Spaces) -> None:
        self._batch, self._spaces = batch, spaces
        self.given = 0

    def next(self, timeout_s: float) -> Batch:
        assert timeout_s >= 0
        self.given += 1
        self._batch.clear()
        for name, tensor in self._batch.tensors.items():
            rng = np.random.default_rng([self.given, zlib.crc32(name.encode())])
            _fill(name, tensor.numpy(), self._spaces, rng)
        flags = self._batch.tensors["flags"].numpy()
        flags[1, 0], flags[2, 0], flags[2, 1] = TERMINATED, DEAD, TRUNCATED
        flags[3, 1] = DEAD
        version, live = self.given - 1, int(((flags & DEAD) == 0).sum())
        self._batch.messages = [
            unrolls.message(
                at,
                version_min=version,
                version_max=version,
                steps=live * (at == 0),
                episodes=((0, 5.0 * self.given, 2), (1, 3.0, 3)) if at == 0 else (),
            )
            for at in range(self._batch.unrolls)
        ]
        return self._batch

    def trained(self, batch: Batch, *, version: int) -> None: ...

    def reject(self, _batch: Batch, _places: Any, objection: Any) -> None:
        raise AssertionError(objection)

    def publish(self, version: int, body: bytes) -> None: ...

    def stats(self, stats: dict[str, float]) -> None: ...

    def windows(self) -> Any:
        return []


def _fill(name: str, array: Any, spaces: Spaces, rng: np.random.Generator) -> None:
    """Numbers of a size that reaches every clip."""
    leaves = {f"obs.{leaf.name}": leaf for leaf in spaces.observation}
    if name in leaves and leaves[name].categories:
        array[:] = rng.integers(0, leaves[name].categories[0], array.shape)
    elif name in leaves and leaves[name].image:
        array[:] = rng.integers(0, 256, array.shape)
    elif name in ("action", "before.action"):
        if spaces.action.single:
            array[:] = rng.integers(0, 3, array.shape)
        else:
            array[:] = rng.normal(0, 0.7, array.shape)
            array[..., 0] = rng.integers(0, 3, array.shape[:-1])
    elif name == "logp":
        # About log(1/3) and two Gaussians: importance weights on both sides of 1.
        array[:] = rng.normal(-1.1 if spaces.action.single else -3.4, 1.0, array.shape)
    elif name != "flags":
        array[:] = rng.normal(0, 2, array.shape)
    else:
        array[:] = 0


def _train(run: run_file.Run, spaces: Spaces, folder: Path) -> TrainParts:
    batch = Batch(
        spaces,
        length=run.unroll.length,
        envs=run.unroll.envs,
        unrolls=run.pacing.batch_unrolls,
        pinned=False,
        memory=run.model.memory,
        previous=run.model.previous,
    )
    feed = _MadeUp(batch, spaces)
    progress = Progress(run.env.metrics, population=spaces.population)
    spaces = msgspec.structs.replace(spaces, settings=tuple(sorted(run.env.settings)))
    model = build(run.model, spaces, seed=run.run.seed)
    appo = run.algorithm.name == "appo"
    algorithm, config, _ = settled(
        run, kind=chosen_kind(run.model, spaces), limit=0, numbers=spaces.action.numbers
    )
    pieces = TrainParts(
        algorithm=algorithm,
        config=config,
        saving=run.checkpoint,
        goal=Goal(None, None, None),
        ranks=Ranks(timeout_s=5.0, cuda=False),
        feed=cast(UnrollReceiver, feed),
        model=model,
        target=build(run.model, spaces, seed=run.run.seed) if appo else None,
        gap=None,
        progress=progress,
        metrics=LearnerMetrics(CollectorRegistry()),
        device=torch.device("cpu"),
        folder=folder,
        spaces=spaces,
        previous=run.model.previous,
        identity={},
        resume=None,
        stopping=lambda: progress.version >= _VERSIONS,
        seed=1,
        started=0.0,
        curriculum=Curriculum(run.env.curriculum, run.env.settings, model),
    )
    folder.mkdir(exist_ok=True)
    assert to_end(train(pieces)) == "stopped"
    return pieces
