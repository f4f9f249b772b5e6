"""Declares what is needed of those who play some of the agents in place of the policy, or learn
beside it."""

from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.actors.acting.previous_step import Arrays, Rows
from headrace.actors.stepping.stepper import Answer
from headrace.broker.weights.blobs import Blob


class Others(Protocol):
    """Plays agents from which the policy does not learn. Rows are columns of the frame."""

    def took(self, blob: Blob) -> None:
        """Hears of weights that the policy has taken, while they lie in memory."""

    def act(
        self,
        rows: Rows,
        seen: Arrays,
        before: NDArray[np.float32] | None,
        actions: NDArray[Any],
        memory: NDArray[np.float32] | None,
    ) -> None:
        """Writes over the actions of the policy, and the memory after them, where others play.
        `before`: the memory before them."""

    def hide(self, rows: Rows, answer: Answer) -> None:
        """Makes dead steps of those that others played, in this copy."""


class OtherLearners(Protocol):
    """Tells a sampler of other policies that learn in the same environments."""

    @property
    def alone(self) -> bool:
        """Says whether no policy learns here any more."""

    def skips(self, group: int) -> bool:
        """Tells whether the policy may not begin an unroll here, and is to act all the same."""

    def plays_on(self, group: int) -> bool:
        """Tells whether a policy without credit is to act all the same, because another learns from
        this step."""


class _NoOthers:
    """Stands for no other policy."""

    alone = True

    def skips(self, group: int) -> bool:
        del group
        return False

    plays_on = skips


NO_OTHERS: Final = _NoOthers()
