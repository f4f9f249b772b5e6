"""Steps environments that several policies share: each has a stepper of its own for its agents.

A group goes on once every policy has said what its agents are to do. One that may not begin an
unroll holds the group up for a while, so that all learn from the same steps; then, or when its run
is over, it plays on unrecorded while another learns.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.actors.action_converter import Rows
from headrace.actors.policies.seats import Seats, sizes
from headrace.actors.stepping.frame_layout import places
from headrace.actors.stepping.stepper import EnvFailure, Frame, Stepper, ThreadReply

# A policy without credit holds the others up so long. Two brokers may each have given the credit
# that the other policy lacks, so the wait must end; and it must be rare, as its steps are lost.
_PATIENCE_S = 0.5
_LOOK_EVERY_S = 0.1


class SharedStepper:
    """Joins the policies' actions, and shows each what its agents see."""

    def __init__(
        self, stepper: Stepper, seats: Sequence[Seats], over: Sequence[Callable[[], object]]
    ) -> None:
        """Shares what `stepper` steps. `over`: of each policy, whether its run is over."""
        self.stepper = stepper
        groups, envs = stepper.frame.groups, stepper.frame.envs
        self._actions = np.zeros((groups, envs, sizes(seats)[1]), np.float32)
        self._missing = [0] * groups  # policies that have not said what they do
        # By group: when the first said so that learns from it; 0 = none has, since its last step.
        self.recorded = [0.0] * groups
        self.views = [
            PolicyStepper(self, one, is_over) for one, is_over in zip(seats, over, strict=True)
        ]
        self._timer: asyncio.TimerHandle | None = None

    @property
    def over(self) -> bool:
        """Says whether no policy learns any more."""
        return all(view.over() for view in self.views)

    def start(self) -> None:
        """Begins, once every policy has weights to play with."""
        if all(view.news is not None for view in self.views):
            self.stepper.start(_Bells([view.news for view in self.views if view.news is not None]))
            self._look_again()

    def look(self) -> None:
        """Shows all policies the groups whose step is done."""
        for group in self.stepper.ready():
            self._missing[group], self.recorded[group] = len(self.views), 0.0
            for view in self.views:
                view.show(group)

    def send(self, group: int, seats: Seats, actions: Rows, *, recorded: bool) -> None:
        """Takes what one policy does; the last one's makes the group's step."""
        own = self._actions[group, :, seats.first : seats.first + seats.numbers]
        own[:] = actions.reshape(own.shape)
        self._missing[group] -= 1
        if recorded and not self.recorded[group]:
            self.recorded[group] = time.monotonic()
        if not self._missing[group]:
            self.stepper.send(group, self._actions[group])
        elif recorded:
            self._ring()  # who plays on unrecorded need not wait longer

    def _ring(self) -> None:
        for view in self.views:
            if view.news is not None:
                view.news.set()

    def _look_again(self) -> None:
        """Wakes policies whose patience may be over."""
        if any(missing and at for missing, at in zip(self._missing, self.recorded, strict=True)):
            self._ring()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_LOOK_EVERY_S, self._look_again)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.stepper.close()


class PolicyStepper:
    """Steps, for one policy, its agents in the shared environments."""

    def __init__(self, shared: SharedStepper, seats: Seats, over: Callable[[], object]) -> None:
        self.seats, self.spaces, self.over = seats, seats.spaces, over
        self.news: asyncio.Event | None = None  # the caller's, from start() on
        self.settled = asyncio.Event()  # the run is over, and no unroll of it is being written
        self._shared = shared
        self._ready: list[int] = []
        self._unrecorded: set[int] = set()  # groups whose next action is
        self._plays_on: set[int] = set()  # groups whose latest action was
        all_frame, agents = shared.stepper.frame, len(seats.agents)
        groups, envs = all_frame.groups, all_frame.envs
        self.beside = shared.stepper.beside
        self.frame = frame = Frame.empty(seats.spaces, groups=groups, envs=envs * agents)
        frame.agents, frame.spent = agents, all_frame.spent
        rows = all_frame.obs["obs"].reshape(groups, envs, -1)
        # By array: as it lies in the observations, and in our frame; both [groups, envs, agents..].
        self._copies = [
            (_seen(rows, seats, number), array.reshape(groups, envs, agents, *array.shape[1:]))
            for number, array in _arrays(frame)
        ]

    def start(self, news: asyncio.Event, _reply: ThreadReply | None = None) -> None:
        self.news = news
        self._shared.start()

    def send(self, group: int, actions: Rows) -> None:
        recorded = group not in self._unrecorded
        self._unrecorded.discard(group)
        if recorded:
            self._plays_on.discard(group)
        else:
            self._plays_on.add(group)
            if self.over() and len(self._plays_on) == self.frame.groups:
                self.settled.set()
        self._shared.send(group, self.seats, actions, recorded=recorded)

    def ready(self) -> list[int]:
        self._shared.look()
        ready, self._ready = self._ready, []
        return ready

    def show(self, group: int) -> None:
        """Takes what the group's newest step led to, for our agents."""
        for seen, own in self._copies:
            own[group] = seen[group]
        self._ready.append(group)

    def plays_on(self, group: int) -> bool:
        """Tells whether the policy is to act though it may not begin an unroll: another learns
        from this step, and has waited for long enough, or did so before."""
        at = self._shared.recorded[group]
        if self.over():
            unrecorded = True
        elif group in self._plays_on:
            unrecorded = at > 0
        else:
            unrecorded = at > 0 and time.monotonic() - at > _PATIENCE_S
        if unrecorded:
            self._unrecorded.add(group)
        return unrecorded

    @property
    def alone(self) -> bool:
        """Says whether no policy learns here any more."""
        return self._shared.over

    def failures(self) -> list[EnvFailure]:
        """Returns the restarts since the last call, to whichever policy asks first."""
        return self._shared.stepper.failures()

    def close(self) -> None:
        self._shared.close()


class _Bells(asyncio.Event):
    """Is several events to whoever sets it."""

    def __init__(self, events: Sequence[asyncio.Event]) -> None:
        super().__init__()
        self._events = events

    def set(self) -> None:
        for event in self._events:
            event.set()


def _arrays(frame: Frame) -> list[tuple[int, NDArray[Any]]]:
    """Returns the arrays that a step fills, with their places in the frame's layout."""
    filled: list[NDArray[Any]] = [frame.reward, frame.flags, *frame.obs.values()]
    if frame.metrics is not None:
        filled.append(frame.metrics)
    return [*enumerate(filled, start=4)]


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
    return rows.view(struct)[..., 0]["own"]
