"""Steps fast environments on the event loop, at the moment their actions are sent."""

import asyncio
from collections.abc import Callable

from headrace.actors.action_converter import Rows
from headrace.actors.stepping.bookkeeping import Bookkeeping
from headrace.actors.stepping.groups.group import GroupSpec
from headrace.actors.stepping.groups.kinds import group_kind
from headrace.actors.stepping.stepper import EnvFailure, EnvsSpec, Frame, ThreadReply


class InlineStepper:
    """Steps a group within send(); nothing runs at any other time."""

    beside = 0

    def __init__(self, made: EnvsSpec) -> None:
        self.spaces = made.spaces
        self.frame = Frame.empty(made.spaces, groups=made.groups, envs=made.envs)
        self._failures: list[EnvFailure] = []  # since the last failures()
        # Hears of a failure while it is handled; what it raises is raised by send().
        self.on_failure: Callable[[EnvFailure], None] = self._failures.append
        self._sent: list[int] = []  # groups that are ready since the last ready()
        self._news = asyncio.Event()  # the caller's, from start() on
        books = Bookkeeping.unshared(groups=made.groups, envs=made.envs)
        kind = group_kind(made)
        self._together = made.together
        self._groups = [
            kind(
                GroupSpec(made, group, books, lambda failure: self.on_failure(failure)), self.frame
            )
            for group in range(0, made.groups, made.together)
        ]

    def start(self, news: asyncio.Event, _reply: ThreadReply | None = None) -> None:
        self._news = news
        for group in self._groups:
            group.begin()
        self._sent = [group.ready for group in self._groups]
        news.set()

    def send(self, group: int, actions: Rows) -> None:
        frame, stepped = self.frame, self._groups[group // self._together]
        frame.action[frame.columns(group)] = actions
        stepped.step(actions)
        self._sent.append(stepped.ready)
        self._news.set()

    def ready(self) -> list[int]:
        sent, self._sent = self._sent, []
        return sent

    def failures(self) -> list[EnvFailure]:
        found = self._failures.copy()
        self._failures.clear()  # the groups hold this list
        return found

    def close(self) -> None:
        for group in self._groups:
            group.close()
