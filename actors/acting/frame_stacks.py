"""The network's input: the newest rows, stacked frames, and the step before."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.actors.acting.previous_step import Arrays, PreviousStep, Rows
from headrace.actors.stepping.stepper import Frame
from headrace.learner.spaces import DEAD, Spaces


class FrameStacks:
    """Holds what the network sees of all environments of a frame. Costs nothing when no leaf is
    stacked, nothing is remembered and the step before is not seen."""

    def __init__(
        self, spaces: Spaces, frame: Frame, *, memory: int = 0, previous: bool = False
    ) -> None:
        count = frame.groups * frame.envs
        self._frame = frame
        self._windows: Arrays = {
            leaf.name: np.zeros((count, *leaf.seen), leaf.dtype)
            for leaf in spaces.observation
            if leaf.stack > 1
        }
        self._previous = PreviousStep(spaces, frame, memory=memory, previous=previous)
        self._idle = self._previous.idle and not self._windows
        self._unseen = np.ones(count, np.bool_)  # environments that have not shown a row yet

    def push(self, group: int) -> None:
        """Takes in the group's newest rows. An environment that begins an episode gets its first
        row in the whole window, and an empty memory."""
        if self._idle:
            return
        columns = self._frame.columns(group)
        fresh = self._unseen[columns] | (self._frame.flags[columns] & DEAD != 0)
        self._unseen[columns] = False
        for name, windows in self._windows.items():
            window, rows = windows[columns], self._frame.obs[name][columns]
            window[:, :-1] = window[:, 1:]
            window[:, -1] = rows
            if fresh.any():
                window[fresh] = rows[fresh][:, None]
        self._previous.push(columns, fresh)

    def view(self, columns: slice) -> Arrays:
        """Returns views of what these environments see now; they change with the next step."""
        seen = {
            name: self._windows.get(name, array)[columns] for name, array in self._frame.obs.items()
        }
        for name, array in self._previous.leaves.items():
            seen[name] = array[columns]
        return seen

    def snapshot(self, rows: Rows) -> Arrays:
        """Returns what these environments see now, to be kept while they go on: the frame's part is
        copied, the rest changes only with push()."""
        whole = isinstance(rows, slice)
        taken = {
            name: array if whole else array[rows]
            for name, array in (*self._windows.items(), *self._previous.leaves.items())
        }
        for name, array in self._frame.obs.items():
            if name not in taken:
                taken[name] = array.copy() if whole else array[rows]
        return taken

    def memory(self, rows: Rows) -> NDArray[np.float32] | None:
        """Returns the recurrent state of these environments; None = the network has none."""
        return None if self._previous.memory is None else self._previous.memory[rows]

    def acted(self, rows: Rows, actions: NDArray[Any], memory: NDArray[np.float32] | None) -> None:
        """Stores the actions and recurrent state that the policy returned for these rows."""
        if not self._previous.idle:
            self._previous.acted(rows, actions, memory)

    def newest(self, taken: Arrays, part: slice) -> Arrays:
        """Returns, of what take() returned, the newest rows, as an unroll holds them."""
        return {
            name: array[part, -1] if name in self._windows else array[part]
            for name, array in taken.items()
        }

    def history(self, stream: int) -> Arrays:
        """Returns by field, time first, what an unroll holds from before its first row."""
        columns = self._frame.columns_of(stream)
        return self._previous.fields(columns) | {
            f"obs.{name}": windows[columns][:, :-1].swapaxes(0, 1)
            for name, windows in self._windows.items()
        }
