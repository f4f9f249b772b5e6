"""Shows one policy's agents of shared environments in a frame of their own."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.actors.policies.seats import Seats
from headrace.actors.stepping.frame_layout import places
from headrace.actors.stepping.stepper import Frame

_TOLD = 4  # place of the first array that a step fills, in a frame's layout


class View:
    """Copies what the agents see out of the observations of the shared environments.

    All agents of a group act together; of environments whose agents take turns, each is a group.
    """

    def __init__(self, shared: Frame, seats: Seats, parts: int) -> None:
        self.seats = seats
        agents, groups, envs = len(seats.agents), shared.groups, shared.envs
        self._groups = agents if seats.turns else 1  # of ours, for each of the shared frame
        self.frame = frame = Frame.empty(
            seats.spaces, groups=groups * self._groups, envs=envs * agents // self._groups
        )
        frame.agents, frame.turns, frame.spent = agents, self._groups, shared.spent
        frame.parts = parts * self._groups
        rows = shared.obs["obs"].reshape(groups, envs, -1)
        # By array: as it lies in the observations, and in our frame; both [groups, envs, agents..].
        self._copies = [
            (_seen(rows, seats, number), array.reshape(groups, envs, agents, *array.shape[1:]))
            for number, array in _arrays(frame)
        ]

    def take(self, group: int, place: int) -> int:
        """Takes what a group's newest step led to; returns the number of our group that shows it,
        where agents take turns that of the agent at `place`."""
        for seen, own in self._copies:
            own[group] = seen[group]
        return group * self._groups + place

    def place_of(self, group: int) -> tuple[int, slice]:
        """Returns the shared group that one of ours is of, and which numbers of its action."""
        shared, place = divmod(group, self._groups)
        width = self.seats.numbers // self._groups
        first = self.seats.first + place * width
        return shared, slice(first, first + width)


def _arrays(frame: Frame) -> list[tuple[int, NDArray[Any]]]:
    """Returns the arrays that a step fills, with their places in the frame's layout."""
    filled: list[NDArray[Any]] = [frame.reward, frame.flags, *frame.obs.values()]
    if frame.metrics is not None:
        filled.append(frame.metrics)
    return [*enumerate(filled, start=_TOLD)]


def _seen(rows: NDArray[Any], seats: Seats, number: int) -> NDArray[Any]:
    """Returns an array of the policy's frames, as it lies in the observations."""
    place = places(seats.spaces, 1, len(seats.agents))[0][number]
    struct = np.dtype(
        {
            "names": ["own"],
            "formats": [(place.dtype, place.shape)],
            "offsets": [seats.at + place.offset],
            "itemsize": rows.shape[-1],
        }
    )
    found: NDArray[Any] = rows.view(struct)[..., 0]["own"]
    return found
