"""Who plays the other agents while a policy is scored: policies that are not trained."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.actors.acting.trained_policy import PolicyLike
from headrace.actors.action_converter import random_rows
from headrace.learner.models import named_code
from headrace.learner.models.named_code import OwnCodeError
from headrace.learner.spaces import Spaces

RANDOM = "random"
_KEY = "evaluate.against"


class RandomPlayer:
    """Draws every action evenly, of those that are allowed."""

    memory, previous, version = 0, False, 0

    def __init__(self, spaces: Spaces, seed: int) -> None:
        self._action = spaces.action
        self._mask = next((leaf.name for leaf in spaces.observation if leaf.mask), "")
        self._dice = np.random.default_rng(seed)

    def act(
        self,
        obs: dict[str, NDArray[np.generic]],
        memory: NDArray[np.float32] | None = None,
        *,
        greedy: bool = False,
    ) -> tuple[NDArray[Any], NDArray[np.float32], None]:
        """Returns a row of an action for each row of the observation."""
        del memory, greedy
        count = len(next(iter(obs.values())))
        rows = random_rows(self._action, self._dice, count, obs.get(self._mask))
        return rows, np.zeros(count, np.float32), None


class OwnPlayer:
    """Asks a function of the user's, which is given a dict of arrays, a row for each agent that is
    to act, and returns as many rows of actions, choices counted from 0."""

    memory, previous, version = 0, False, 0

    def __init__(self, name: str, spaces: Spaces) -> None:
        self._name, self._action = name, spaces.action
        self._own = named_code.function(_KEY, name)

    def act(
        self,
        obs: dict[str, NDArray[np.generic]],
        memory: NDArray[np.float32] | None = None,
        *,
        greedy: bool = False,
    ) -> tuple[NDArray[Any], NDArray[np.float32], None]:
        """Returns a row of an action for each row of the observation; OwnCodeError if the function
        fails, or gives something else."""
        del memory, greedy
        count = len(next(iter(obs.values())))
        try:
            rows = np.asarray(self._own(obs), self._action.dtype)
        except Exception as error:
            raise OwnCodeError(
                f'{_KEY} = "{self._name}" failed, mend it: {named_code.one_line(error)}'
            ) from error
        if rows.shape != (count, *self._action.shape):
            raise OwnCodeError(
                f'{_KEY} = "{self._name}" gives {[*rows.shape]} for {count} agents; it must give'
                f" {[count, *self._action.shape]}"
            )
        return rows, np.zeros(count, np.float32), None


def player(against: str, spaces: Spaces, seed: int) -> PolicyLike:
    """Returns who plays by this value of evaluate.against, if it names no folder."""
    return RandomPlayer(spaces, seed) if against == RANDOM else OwnPlayer(against, spaces)
