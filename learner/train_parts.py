"""The parts that the train loop works with; launch puts them together."""

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

import torch

from headrace.broker.peers.learner_ends import Windows
from headrace.broker.peers.objections import Objection
from headrace.learner.algorithms import schedule
from headrace.learner.algorithms.curriculum import Curriculum, Moment
from headrace.learner.algorithms.loss_inputs import Coefficients
from headrace.learner.batches.batch import Batch
from headrace.learner.batches.logprob_gap import LogProbGap
from headrace.learner.checkpoints.checkpoint import Checkpoint
from headrace.learner.checkpoints.config import CheckpointConfig
from headrace.learner.config import AlgorithmConfig
from headrace.learner.history.line import Pace
from headrace.learner.learner_config import LearnerConfig
from headrace.learner.metrics import LearnerMetrics
from headrace.learner.models.model import Model
from headrace.learner.progress import Progress
from headrace.learner.ranks import Ranks
from headrace.learner.spaces import Spaces
from headrace.learner.weights import Body

T = TypeVar("T")
# Work in turns: yields whether the turn before got on, and returns what came of all of it.
Turns: TypeAlias = Generator[bool, None, T]


def to_end(turns: Turns[T]) -> T:
    """Takes all turns, one after the other; returns what came of them."""
    while True:
        try:
            next(turns)
        except StopIteration as end:
            value: T = end.value
            return value


@dataclass(frozen=True, slots=True)
class Goal:
    """Says when to stop; None = never for that reason."""

    return_: float | None
    steps: int | None
    seconds: float | None  # of the run's clock
    by_evaluation: bool = False  # `return_` is wanted of an evaluation, not of training episodes
    metric: str = ""  # `return_` is wanted of this one of env.metrics; "" = of the mean return

    def met(self, progress: Progress, seconds: float = 0.0) -> str:
        """Returns which limit is reached: return, steps or seconds; "" = none."""
        best = progress.evaluated
        if self.by_evaluation and best is not None and self.return_ is not None:
            reached = best >= self.return_
        else:
            reached = not self.by_evaluation and progress.reached(self.return_, self.metric)
        if reached:
            return "return"
        if self.steps is not None and progress.trained_steps >= self.steps:
            return "steps"
        return "seconds" if self.seconds is not None and seconds >= self.seconds else ""


class UnrollSource(Protocol):
    """Gives batches and takes weights: a broker's receiver, or a recording of one."""

    def next(self, timeout_s: float) -> Batch | None: ...

    def trained(self, batch: Batch, *, version: int) -> None: ...

    def reject(self, batch: Batch, places: Sequence[int], objection: Objection, /) -> None: ...

    def refill(self, batch: Batch) -> None: ...

    def publish(self, version: int, body: Body) -> None: ...

    def windows(self) -> Windows: ...

    def stats(self, stats: dict[str, float]) -> None: ...


@dataclass(slots=True)
class TrainParts:
    """Holds what the train loop of one rank works with."""

    algorithm: AlgorithmConfig
    config: LearnerConfig
    saving: CheckpointConfig
    goal: Goal
    ranks: Ranks
    feed: UnrollSource
    model: Model
    target: Model | None  # appo's target network
    gap: LogProbGap | None
    progress: Progress
    metrics: LearnerMetrics
    device: torch.device
    folder: Path
    spaces: Spaces
    previous: bool  # the network sees the action and reward before
    identity: dict[str, Any]  # what a checkpoint must fit: run and spaces
    resume: Checkpoint | None
    stopping: Callable[[], bool]  # somebody asked us to end
    seed: int  # of the dice that shuffle and pick
    started: float  # when the process that the user started began, by time.monotonic
    # When the run's clock was 0, by time.monotonic: time between earlier starts does not count.
    # None = as `started`.
    began: float | None = None
    patience: Callable[[], float] = lambda: 0.5  # most seconds of a turn that wait for a batch
    # Returns the best mean return of an evaluation that this rank has heard of; None = of none.
    evaluated: Callable[[], float | None] = lambda: None
    curriculum: Curriculum = field(default_factory=Curriculum)
    pace: Pace = field(default_factory=Pace)  # since the numbers were shown last
    # Makes another such network in the host's memory; asked for where the network is spread.
    plain: Callable[[], Model] | None = None
    history_gap: bool = False  # its latest line could not be written, and that was logged
    first_train_s: float | None = None

    @property
    def spread(self) -> bool:
        """Tells whether each rank holds a part of the network."""
        return self.config.shard and self.ranks.world > 1

    def moment(self) -> Moment:
        """Returns how far the run is, for a curriculum."""
        now, steps = self.progress, self.goal.steps
        share = min(1.0, now.trained_steps / steps) if steps else 0.0
        mean, metrics = now.mean_return(), now.metrics.means
        return Moment(now.trained_steps, now.version, now.episodes, mean, metrics, share)

    def coefficients(self) -> Coefficients:
        """Returns what schedules, adaptation and statistics make of the config at this step."""
        steps, own = self.progress.trained_steps, self.algorithm
        adapted, returns = self.progress.kl_coef if own.kl_target else None, self.model.returns
        return Coefficients(
            clip=schedule.value_at(own.clip, steps),
            entropy_coef=schedule.value_at(own.entropy_coef, steps),
            kl_coef=adapted or own.kl_coef,
            std=1.0 if returns is None else returns.std.float(),
            advantage_square=self.progress.advantage_square,
        )

    def settings_used(self) -> dict[str, float]:
        """Returns the settings that may change as training goes on, as they are at this step."""
        name, coefs = self.algorithm.name, self.coefficients()
        return {
            "lr": schedule.value_at(self.config.lr, self.progress.trained_steps),
            "entropy_coef": float(coefs.entropy_coef),
            **({} if name == "impala" else {"clip": float(coefs.clip)}),
            **({"kl_coef": float(coefs.kl_coef)} if name == "appo" else {}),
        }

    def clock(self) -> float:
        """Returns the seconds that the run has been at work, over all its starts."""
        return time.monotonic() - (self.started if self.began is None else self.began)
