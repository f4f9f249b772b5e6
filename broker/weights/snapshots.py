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

    @property
    def most(self) -> int:
        """Returns how many are kept at most."""
        return self._keep

    def due(self, version: int) -> bool:
        return self._keep > 0 and version >= self._next

    def add(self, version: int, snapshot: Kept) -> None:
        """Keeps one that is due."""
        before = next(reversed(self.kept), version)
        while version - before >= 2 * self._every:  # they were chosen by who has kept them longer
            self._every *= 2
        self.kept[version] = snapshot
        if len(self.kept) > self._keep:
            self.kept = dict([*self.kept.items()][::-2][::-1])
            self._every *= 2
        self._next = version + self._every

    def undo(self, version: int) -> None:
        """Forgets those from this version on: the learner has gone back to an older state."""
        if self.kept and next(reversed(self.kept)) >= version:
            self.kept = {v: one for v, one in self.kept.items() if v < version}
            self._next = next(reversed(self.kept), version - self._every) + self._every
