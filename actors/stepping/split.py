"""Splits groups whose environments need not wait for their turn: the parts are stepped side by
side.

The parts are groups to the stepper beneath; their columns lie as those of the whole do. In threads
the part that is done last asks for the actions of the whole group, so that nobody else is woken
before there is something to do: not the event loop, and no part either.
"""

import asyncio
import dataclasses
import threading

from headrace.actors.action_converter import Rows
from headrace.actors.stepping.stepper import EnvFailure, Stepper, ThreadReply
from headrace.actors.stepping.threads import ThreadStepper


class SplitStepper:
    """Steps every group in parts; it is ready when all of its parts are."""

    def __init__(self, inner: Stepper, *, parts: int) -> None:
        """Takes `parts` groups of `inner` as one group."""
        frame = inner.frame
        self.spaces = inner.spaces
        self.frame = dataclasses.replace(
            frame, groups=frame.groups // parts, envs=frame.envs * parts
        )
        self.inner = inner
        self._parts = parts  # of each group
        self._left = [0] * self.frame.groups  # by group: parts that are not ready yet
        self._ask = isinstance(
            inner, ThreadStepper
        )  # parts count themselves, and name only the last
        self._reply = ThreadReply(threading.Lock(), lambda _: None)  # the caller's, if it gives one
        self.beside = inner.beside

    def start(self, news: asyncio.Event, reply: ThreadReply | None = None) -> None:
        """Starts all parts. None goes on before the others: the network acts for whole groups."""
        self._left = [self._parts] * self.frame.groups
        self._reply = reply or self._reply
        asked = ThreadReply(self._reply.lock, self._answer, self._last)
        self.inner.start(news, asked if self._ask else None)

    def send(self, group: int, actions: Rows) -> None:
        self._left[group] = self._parts
        for part in self._parts_of(group):
            self.inner.send(part, self._rows(part, actions))

    def ready(self) -> list[int]:
        parts = self.inner.ready()
        return [part // self._parts for part in parts if self._ask or self._last(part)]

    def failures(self) -> list[EnvFailure]:
        return self.inner.failures()

    def close(self) -> None:
        self.inner.close()

    def _last(self, part: int) -> bool:
        """Counts a part that is done. True: the whole group is."""
        group = part // self._parts
        self._left[group] -= 1
        return not self._left[group]

    def _answer(self, last: int) -> Rows | None:
        """Sends the group's other parts on, and returns the actions of its last one."""
        group = last // self._parts
        actions = self._reply.actions(group)
        if actions is None:
            return None
        self._left[group] = self._parts
        for part in self._parts_of(group):
            if part != last:
                self.inner.send(part, self._rows(part, actions))
        return self._rows(last, actions)

    def _parts_of(self, group: int) -> range:
        return range(group * self._parts, (group + 1) * self._parts)

    def _rows(self, part: int, actions: Rows) -> Rows:
        """Returns a part's share of its group's actions."""
        envs, at = self.inner.frame.envs, part % self._parts
        return actions[at * envs : (at + 1) * envs]


def parts_of(envs: int, *, groups: int, wanted: int) -> int:
    """Returns the number of equal parts to split each group into, so that all groups together have
    `wanted`: the fewest that are enough, or as many as there can be."""
    equal = [parts for parts in range(1, envs + 1) if envs % parts == 0]
    return next((parts for parts in equal if groups * parts >= wanted), envs)
