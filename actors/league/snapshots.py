"""Keeps what the policy was, spread over all that it has learned. Pure.

One snapshot is kept of every so many versions. When there are too many, every second one goes,
never the newest, and from then on they are taken half as often: so the past is covered evenly,
however long it is.
"""

from typing import Generic, TypeVar

Kept = TypeVar("Kept")


class Snapshots(Generic[Kept]):
    """Holds at most `keep` of them, by version."""

    def __init__(self, *, every: int, keep: int) -> None:
        self.kept: dict[int, Kept] = {}  # oldest first
        self._every, self._keep = every, keep
        self._next = 0  # the version from which one is due

    def due(self, version: int) -> bool:
        return version >= self._next

    def add(self, version: int, snapshot: Kept) -> None:
        """Keeps one that is due."""
        self.kept[version] = snapshot
        if len(self.kept) > self._keep:
            self.kept = dict([*self.kept.items()][::-2][::-1])
            self._every *= 2
        self._next = version + self._every
