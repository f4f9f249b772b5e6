"""Recurrent state, last action and last reward: the network's input from the step before."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.actors.stepping.stepper import Frame
from headrace.learner.spaces import SHOWN_REWARD, Action, Spaces, previous_leaves

Arrays = dict[str, NDArray[np.generic]]
# Rows of a frame: all of them, or numbers in any order.
Rows = slice | NDArray[np.int64]


class PreviousStep:
    """Holds recurrent state, last action and last reward of all environments of a frame; all are
    cleared where an episode begins."""

    def __init__(self, spaces: Spaces, frame: Frame, *, memory: int, previous: bool) -> None:
        count, action = frame.groups * frame.envs, spaces.action
        self._frame = frame
        self._choices = len(action.categories)
        self._memory_rows = np.zeros((count, memory), np.float32)
        self.memory = self._memory_rows if memory else None  # None = the network has none
        self._none = _none(action)
        self._action = np.full((count, *action.shape), self._none, action.dtype)
        self._reward = np.zeros(count, np.float32)
        # By number of the action: whether it is squashed, and where it is cut.
        self._squashed = np.array(action.squashed, np.bool_)
        self._limit = np.array(action.shown, np.float32)
        # What the network sees of it. It changes only with push().
        self.leaves: Arrays = {
            leaf.name: np.zeros((count, *leaf.shape), leaf.dtype)
            for leaf in (previous_leaves(spaces) if previous else ())
        }
        self.idle = not memory and not previous
        # Only of agents that take turns, whose unroll may end while a step waits for its answer:
        # what their rows held before that step.
        self._then = None if frame.turns == 1 else (self._action.copy(), self._memory_rows.copy())
        self._unanswered = np.zeros(count, np.bool_)

    def acted(self, rows: Rows, actions: NDArray[Any], memory: NDArray[np.float32] | None) -> None:
        """Stores the actions and recurrent state that the policy returned for these rows."""
        if self._then is not None:
            for kept, now in zip(self._then, (self._action, self._memory_rows), strict=True):
                kept[rows] = now[rows]
            self._unanswered[rows] = True
        if self.memory is not None:
            self.memory[rows] = memory
        if self.leaves:
            self._action[rows] = actions

    def push(self, columns: slice, fresh: NDArray[np.bool_]) -> None:
        """Takes in the rewards of a step; clears everything where `fresh`: an episode begins."""
        self._unanswered[columns] = False
        if self.memory is not None:
            self.memory[columns][fresh] = 0.0
        if not self.leaves:
            return
        actions = self._action[columns]
        actions[fresh] = self._none
        # A reward that is not finite spoils its own unroll, and must not spoil the next.
        reward = np.where(fresh, np.float32(0.0), np.nan_to_num(self._frame.reward[columns]))
        self._reward[columns] = reward
        self.leaves["previous.reward"][columns] = reward.clip(-SHOWN_REWARD, SHOWN_REWARD)
        rows = actions.reshape(len(actions), -1)
        if "previous.choices" in self.leaves:
            self.leaves["previous.choices"][columns] = rows[:, : self._choices]
        if "previous.numbers" in self.leaves:
            self.leaves["previous.numbers"][columns] = self._shown(rows[:, self._choices :])

    def fields(self, columns: slice) -> Arrays:
        """Returns by field, [1, envs, ...], what an unroll that begins now holds."""
        action, memory = self._action[columns], self._memory_rows[columns]
        if self._then is not None:
            action, memory = action.copy(), memory.copy()
            late = self._unanswered[columns]
            action[late], memory[late] = (kept[columns][late] for kept in self._then)
        out: Arrays = {}
        if self.memory is not None:
            out["memory"] = memory[None]
        if self.leaves:
            out["before.action"] = action[None]
            out["before.reward"] = self._reward[columns][None]
        return out

    def _shown(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """Bounds the numbers as learner/batches/frames.py does for the learner."""
        cut = numbers.clip(-self._limit, self._limit)
        return np.where(self._squashed, np.tanh(numbers), cut) if self._squashed.any() else cut


def _none(action: Action) -> NDArray[np.generic]:
    """Returns the row that stands for no action."""
    choices = len(action.categories)
    row = np.array([-1] * choices + [0] * action.numbers, action.dtype)
    return row.reshape(action.shape)
