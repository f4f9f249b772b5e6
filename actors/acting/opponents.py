"""Makes players that are not trained, for the other agents while a policy is scored or learns."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.actors.acting.trained_policy import PolicyLike
from headrace.actors.action_converter import random_rows
from headrace.learner.models import named_code
from headrace.learner.models.named_code import OwnCodeError
from headrace.learner.spaces import Spaces

RANDOM = "random"
_KEY = "evaluate.against"  # if nothing else is said, the setting that names them

Seen = dict[str, NDArray[Any]]  # parts of the observation, a row for each agent that is to act
Moves = Callable[[Seen, int], NDArray[Any]]  # as many rows of actions, choices counted from 0


class Player:
    """Plays by a function, as a policy that remembers nothing."""

    memory, previous, version = 0, False, 0

    def __init__(self, moves: Moves) -> None:
        self._moves = moves

    def act(
        self, obs: Seen, memory: NDArray[np.float32] | None = None, *, greedy: bool = False
    ) -> tuple[NDArray[Any], NDArray[np.float32], None]:
        """Returns a row of an action for each row of the observation."""
        del memory, greedy
        count = len(next(iter(obs.values())))
        return self._moves(obs, count), np.zeros(count, np.float32), None


def player(against: str, spaces: Spaces, seed: int, key: str = _KEY) -> PolicyLike:
    """Returns who plays by this value of a setting, if it names no folder; OwnCodeError where there
    is no such function."""
    return Player(_drawn(spaces, seed) if against == RANDOM else _own(against, spaces, key))


def _drawn(spaces: Spaces, seed: int) -> Moves:
    """Draws every action evenly, of those that are allowed."""
    mask = next((leaf.name for leaf in spaces.observation if leaf.mask), "")
    dice = np.random.default_rng(seed)
    return lambda seen, count: random_rows(spaces.action, dice, count, seen.get(mask))


def _own(name: str, spaces: Spaces, key: str) -> Moves:
    """Asks a function of the user's; OwnCodeError if it fails, or gives something else."""
    own, action = named_code.function(key, name), spaces.action

    def checked(seen: Seen, count: int) -> NDArray[Any]:
        try:
            rows = np.asarray(own(seen), action.dtype)
        except Exception as error:
            raise OwnCodeError(
                f'{key} = "{name}" failed, mend it: {named_code.one_line(error)}'
            ) from error
        if rows.shape != (count, *action.shape):
            raise OwnCodeError(
                f'{key} = "{name}" gives {[*rows.shape]} for {count} agents; it must give'
                f" {[count, *action.shape]}"
            )
        return rows

    return checked
