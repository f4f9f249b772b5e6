"""What the network sees: rows as they are, and stacked ones put side by side again."""

import numpy as np
from numpy.typing import NDArray

from actors.stepping.stepper import Frame
from learner.spaces import DEAD, Spaces

Arrays = dict[str, NDArray[np.generic]]
# Rows of a frame: all of them, or numbers in any order.
Rows = slice | NDArray[np.int64]


class Stacks:
    """For all environments of a frame. Costs nothing when no leaf is stacked."""

    def __init__(self, spaces: Spaces, frame: Frame) -> None:
        count = frame.groups * frame.envs
        self._frame = frame
        self._windows: Arrays = {
            leaf.name: np.zeros((count, *leaf.seen), leaf.dtype)
            for leaf in spaces.observation
            if leaf.stack > 1
        }
        self._unseen = np.ones(count, np.bool_)  # environments that have not shown a row yet

    def push(self, group: int) -> None:
        """The group's newest rows move in. One that begins an episode fills its whole window."""
        if not self._windows:
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

    def look(self, columns: slice) -> Arrays:
        """What these environments see now, in place: it changes when they go on."""
        return {
            name: self._windows.get(name, array)[columns] for name, array in self._frame.obs.items()
        }

    def take(self, rows: Rows) -> Arrays:
        """What these environments see now. It stays when they go on: the frame's part is a copy,
        the windows move only with push()."""
        whole = isinstance(rows, slice)
        taken = {
            name: windows if whole else windows[rows] for name, windows in self._windows.items()
        }
        for name, array in self._frame.obs.items():
            if name not in taken:
                taken[name] = array.copy() if whole else array[rows]
        return taken

    def newest(self, taken: Arrays, part: slice) -> Arrays:
        """Of what was taken, the rows as they travel."""
        return {
            name: array[part, -1] if name in self._windows else array[part]
            for name, array in taken.items()
        }

    def history(self, group: int) -> Arrays:
        """By stacked leaf, [stack - 1, envs, ...]: what the network saw before the newest row."""
        columns = self._frame.columns(group)
        return {
            name: windows[columns][:, :-1].swapaxes(0, 1) for name, windows in self._windows.items()
        }
