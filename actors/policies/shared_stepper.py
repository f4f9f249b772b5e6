"""Steps environments that several policies share: each has a stepper of its own for its agents.

A group goes on once all whose agents act have said what these do. A policy that may not begin an
unroll holds the group up for a while, so that all learn from the same steps; then, or when its run
is over, it plays on unrecorded while another learns. Agents that nobody trains act at once.
"""

import asyncio
import time
from collections.abc import Callable, Sequence

import numpy as np

from headrace.actors.acting.frame_stacks import FrameStacks
from headrace.actors.acting.trained_policy import PolicyLike
from headrace.actors.action_converter import Rows
from headrace.actors.policies.seats import Seats, episode_of, sizes, whose_turn
from headrace.actors.policies.view import View
from headrace.actors.stepping.stepper import EnvFailure, Stepper, ThreadReply
from headrace.learner.spaces import DEAD

# A policy without credit holds the others up so long. Two brokers may each have given the credit
# that the other policy lacks, so the wait must end; and it must be rare, as its steps are lost.
_PATIENCE_S = 0.5
_LOOK_EVERY_S = 0.1


class SharedStepper:
    """Joins the actions of all, and shows each policy what its agents see."""

    def __init__(
        self,
        stepper: Stepper,
        seats: Sequence[Seats],
        *,
        over: Sequence[Callable[[], object]],
        players: Sequence[PolicyLike] = (),
        parts: int = 1,
    ) -> None:
        """Shares what `stepper` steps. Of `seats` the first are those of policies, whose runs are
        over when `over` says so, the rest those of `players`, whom nobody trains. `parts`: groups
        that fill an unroll together."""
        self.stepper = stepper
        groups, envs = stepper.frame.groups, stepper.frame.envs
        self._actions = np.zeros((groups, envs, sizes(seats)[1]), np.float32)
        seen = stepper.frame.obs["obs"]
        self._turn = whose_turn(seen) if seats[0].turns else None
        self.episodes = episode_of(seen)  # of each environment, by number
        self._missing = [0] * groups  # how many have not said what their agents do
        # By group: when the first said so that learns from it; 0 = none has, since its last step.
        # Where agents take turns: when one of them was shown it.
        self.recorded = [0.0] * groups
        all_views = [View(stepper.frame, one, parts) for one in seats]
        self.views = [
            PolicyStepper(self, view, is_over)
            for view, is_over in zip(all_views, over, strict=False)
        ]
        self._seated: list[PolicyStepper | _Untrained] = [
            *self.views,
            *(
                _Untrained(self, view, player)
                for view, player in zip(all_views[len(self.views) :], players, strict=True)
            ),
        ]
        # By agent, as the environments number them: who plays it, and its place there.
        self._agents = [
            (seated, place)
            for seated, own in zip(self._seated, seats, strict=True)
            for place in range(len(own.agents))
        ]
        self._timer: asyncio.TimerHandle | None = None

    @property
    def over(self) -> bool:
        """Says whether no policy learns any more."""
        return all(view.over() for view in self.views)

    def learns_beside(self, policy: "PolicyStepper", group: int) -> bool:
        """Says whether another policy learns in this group."""
        return any(view.learns(group) for view in self.views if view is not policy)

    def start(self) -> None:
        """Begins, once every policy has weights to play with."""
        bells = [view.news for view in self.views if view.news is not None]
        if len(bells) == len(self.views):
            self.stepper.start(_Bells(bells))
            self._look_again()

    def look(self, asks: "PolicyStepper") -> None:
        """Shows the groups whose step is done to all whose agents act next; wakes those beside the
        one that asks."""
        ready = self.stepper.ready()
        if ready:
            self._ring(asks)
        for group in ready:
            if self._turn is not None:
                self._missing[group], self.recorded[group] = 1, time.monotonic()
                seated, place = self._agents[int(self._turn[group])]
                seated.show(group, place)
                continue
            self._missing[group], self.recorded[group] = len(self._seated), 0.0
            for seated in self._seated:
                seated.show(group)

    def send(self, view: View, group: int, actions: Rows, *, recorded: bool) -> None:
        """Takes what the agents of this view's group do; the last ones' makes the step."""
        group, own = view.place_of(group)
        self._actions[group, :, own] = actions.reshape(len(self._actions[group]), -1)
        self._missing[group] -= 1
        if recorded and not self.recorded[group]:
            self.recorded[group] = time.monotonic()
        if not self._missing[group]:
            self.stepper.send(group, self._actions[group])
        elif recorded:
            self._ring()  # who plays on unrecorded need not wait longer

    def _ring(self, beside: "PolicyStepper | None" = None) -> None:
        for view in self.views:
            if view.news is not None and view is not beside:
                view.news.set()

    def _look_again(self) -> None:
        """Wakes policies whose patience may be over, or that wait for others who act no more."""
        waiting = zip(self._missing, self.recorded, strict=True)
        if self.over or any(missing and at for missing, at in waiting):
            self._ring()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_LOOK_EVERY_S, self._look_again)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.stepper.close()


class PolicyStepper:
    """Steps, for one policy, its agents in the shared environments."""

    def __init__(self, shared: SharedStepper, view: View, over: Callable[[], object]) -> None:
        self.spaces, self.frame, self.over = view.seats.spaces, view.frame, over
        self.whole = shared.stepper  # steps the environments, for all policies
        self.beside = self.whole.beside
        self.episodes = shared.episodes  # of each environment, by number
        self.news: asyncio.Event | None = None  # the caller's, from start() on
        self.may_begin: Callable[[int], bool] = lambda _: False  # it has credit for this group
        self.tell_unrecorded: Callable[[int], object] = lambda _: None  # so many agent steps
        self.settled = asyncio.Event()  # the run is over, and no unroll of it is being written
        self._shared, self._view = shared, view
        self._ready: list[int] = []
        self._unrecorded: set[int] = set()  # groups whose next action is
        self._recorded: dict[int, bool] = {}  # by group: whether its latest action was

    def start(self, news: asyncio.Event, _reply: ThreadReply | None = None) -> None:
        self.news = news
        self._shared.start()

    def send(self, group: int, actions: Rows) -> None:
        recorded = group not in self._unrecorded
        self._unrecorded.discard(group)
        self._recorded[group] = recorded
        if not recorded and not self.over():
            self.tell_unrecorded(len(actions))
        elif not recorded and [*self._recorded.values()] == [False] * self.frame.groups:
            self.settled.set()
        self._shared.send(self._view, group, actions, recorded=recorded)

    def ready(self) -> list[int]:
        self._shared.look(self)
        ready, self._ready = self._ready, []
        return ready

    def show(self, group: int, place: int = 0) -> None:
        """Takes what the group's newest step led to, for our agents."""
        self._ready.append(self._view.take(group, place))

    def skips(self, group: int) -> bool:
        """Tells whether the policy is to act without an unroll whether it has credit or not: its
        run is over, or it is in the middle of a game of turns that it began to play so."""
        unrecorded = bool(self.over())
        if self._view.seats.turns and self._played_on(group):
            unrecorded |= not self.frame.flags[self.frame.columns(group)] & DEAD
        if unrecorded:
            self._unrecorded.add(group)
        return unrecorded

    def plays_on(self, group: int) -> bool:
        """Tells whether the policy, which has no credit, is to act all the same: another learns
        from this step, and has waited for long enough, or did so before."""
        shared_group, _ = self._view.place_of(group)
        at = self._shared.recorded[shared_group]
        if self._view.seats.turns and not self._shared.learns_beside(self, shared_group):
            return False
        patience_s = 0.0 if self._played_on(group) else _PATIENCE_S
        unrecorded = at > 0 and time.monotonic() - at >= patience_s
        if unrecorded:
            self._unrecorded.add(group)
        return unrecorded

    def learns(self, group: int) -> bool:
        """Tells whether this policy learns from its latest action in the group, or may from the
        next game on."""
        return self._recorded.get(group, False) or self.may_begin(group)

    def _played_on(self, group: int) -> bool:
        """Tells whether it acted in this group, and its latest action was not recorded."""
        return not self._recorded.get(group, True)

    @property
    def alone(self) -> bool:
        """Says whether no policy learns here any more."""
        return self._shared.over

    def failures(self) -> list[EnvFailure]:
        """Returns the restarts since the last call, to whichever policy asks first."""
        return self.whole.failures()

    def close(self) -> None:
        self._shared.close()


class _Untrained:
    """Plays agents that nobody trains, as soon as they are to act."""

    def __init__(self, shared: SharedStepper, view: View, player: PolicyLike) -> None:
        self._shared, self._view, self._player = shared, view, player
        self._stacks = FrameStacks(
            view.seats.spaces, view.frame, memory=player.memory, previous=player.previous
        )

    def show(self, group: int, place: int = 0) -> None:
        """Acts on what the group's newest step led to."""
        own = self._view.take(group, place)
        self._stacks.push(own)
        columns = self._view.frame.columns(own)
        before = self._stacks.memory(columns)
        actions, _, after = self._player.act(self._stacks.view(columns), before)
        self._stacks.acted(columns, actions, after)
        self._shared.send(self._view, own, actions, recorded=False)


class _Bells(asyncio.Event):
    """Is several events to whoever sets it."""

    def __init__(self, events: Sequence[asyncio.Event]) -> None:
        super().__init__()
        self._events = events

    def set(self) -> None:
        for event in self._events:
            event.set()
