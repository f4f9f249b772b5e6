"""A batch on its way through its optimiser steps, and who takes it through them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from headrace.learner.algorithms.batch_uses import Sample
from headrace.learner.algorithms.loss_inputs import LossNorm
from headrace.learner.batches.batch import Batch
from headrace.learner.nonfinite import BrokenStep
from headrace.learner.ranks import Facts
from headrace.learner.step.landing import Landing
from headrace.learner.weights import Body


@dataclass(slots=True, kw_only=True, eq=False)
class Flight:
    """Holds what is known of one batch until it is settled."""

    batch: Batch
    facts: Facts  # of all ranks
    tensors: dict[str, Tensor]  # the batch on the device
    whole: LossNorm
    used: dict[str, float]  # settings, at this step
    began: float  # by time.perf_counter
    fresh: Sample | None = None  # of the tensors; late, only where a step was not finite
    taken: int = 0  # optimiser steps
    broken: BrokenStep | None = None  # the step that was not finite, if one was not
    again: bool = False  # the batch is as it was, and to be begun once more
    vs: Tensor | None = None  # the value targets
    # Of the latest finite step: its loss's figures, the norm of its gradient before it was cut, and
    # how well the values fit their targets.
    stats: Mapping[str, Tensor] = field(default_factory=dict)
    norm: Tensor | None = None
    fit: Callable[[], Mapping[str, Tensor]] = dict
    # Of steps that the device decides on.
    landing: Landing | None = None
    moved: bool = False  # the target network moved after it
    sound: bool = True  # the weights were finite after it


class Steps(Protocol):
    """Takes batches through their optimiser steps."""

    late: bool  # the outcome of a step is known only after the next one was begun

    def begin(self, batch: Batch, facts: Facts) -> Flight:
        """Begins the steps of a batch; unless `late`, they are over when this returns."""

    def finish(self, flight: Flight) -> None:
        """Waits for the steps and fills in what was not known."""

    def weights(self, flight: Flight) -> Body:
        """Returns the weights as they were after these steps."""

    def close(self) -> None:
        """Ends what works beside the steps; there may be more of them."""
