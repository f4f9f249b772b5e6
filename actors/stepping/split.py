"""Groups whose environments do not wait for their turn: each is stepped in parts, side by side.

The parts are groups to the stepper beneath; their columns lie as those of the whole do.
"""

import asyncio
import dataclasses

from headrace.actors.actions import Rows
from headrace.actors.stepping.stepper import Failure, Reply, Stepper


class Split:
    """A group is ready when all of its parts are."""

    def __init__(self, inner: Stepper, *, parts: int) -> None:
        """parts: of each group, so many groups of `inner`."""
        frame = inner.frame
        self.spaces = inner.spaces
        self.frame = dataclasses.replace(
            frame, groups=frame.groups // parts, envs=frame.envs * parts
        )
        self.inner = inner
        self._parts = parts  # of each group
        self._left = [0] * self.frame.groups  # by group: parts that are not ready yet
        self.beside = inner.beside

    def start(self, news: asyncio.Event, _reply: Reply | None = None) -> None:
        """No part may go on before the others: the network acts for whole groups."""
        self._left = [self._parts] * self.frame.groups
        self.inner.start(news)

    def send(self, group: int, actions: Rows) -> None:
        self._left[group] = self._parts
        envs = self.inner.frame.envs
        for part in range(self._parts):
            rows = actions[part * envs : (part + 1) * envs]
            self.inner.send(group * self._parts + part, rows)

    def ready(self) -> list[int]:
        whole = []
        for part in self.inner.ready():
            group = part // self._parts
            self._left[group] -= 1
            if not self._left[group]:
                whole.append(group)
        return whole

    def failures(self) -> list[Failure]:
        return self.inner.failures()

    def close(self) -> None:
        self.inner.close()


def parts_of(envs: int, *, groups: int, wanted: int) -> int:
    """Into how many equal parts to split each group, so that all groups together have `wanted`:
    the fewest that are enough, or as many as there can be."""
    equal = [parts for parts in range(1, envs + 1) if envs % parts == 0]
    return next((parts for parts in equal if groups * parts >= wanted), envs)
