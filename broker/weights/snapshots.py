"""Keeps what the policy was, spread over all that it has learned. Pure.

One snapshot is kept of every so many versions. When there are too many, every second one goes,
never the newest, and from then on they are taken half as often: so the past is covered evenly,
however long it is.
"""

import itertools
from typing import Generic, TypeVar

Kept = TypeVar("Kept")


class Snapshots(Generic[Kept]):
    """Holds at most `keep` of them, by version."""

    def __init__(self, *, every: int, keep: int) -> None:
        self.kept: dict[int, Kept] = {}  # oldest first
        self._first = self._every = every
        self._keep = keep
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
        self._widen(version - before)
        self.kept[version] = snapshot
        self._thin()
        self._next = version + self._every

    def _widen(self, gap: int) -> None:
        """Goes on as those who have kept them for longer, and lie so far apart."""
        while gap >= 2 * self._every:
            self._every *= 2

    def _thin(self) -> None:
        if len(self.kept) > self._keep:
            self.kept = dict([*self.kept.items()][::-2][::-1])
            self._every *= 2

    def lacks(self, version: int) -> bool:
        """Tells whether one from before the newest, which somebody else has kept, is not here."""
        newest = next(reversed(self.kept), -1)
        return self._keep > 0 and version < newest and version not in self.kept

    def add_earlier(self, version: int, snapshot: Kept) -> None:
        """Puts one that is lacking in its place."""
        self.kept = dict(sorted({**self.kept, version: snapshot}.items()))
        self._every = self._first
        self._widen(max(after - before for before, after in itertools.pairwise(self.kept)))
        self._thin()
        self._next = next(reversed(self.kept)) + self._every

    def undo(self, version: int) -> None:
        """Forgets those from this version on: the learner has gone back to an older state."""
        if self.kept and next(reversed(self.kept)) >= version:
            self.kept = {v: one for v, one in self.kept.items() if v < version}
            self._next = next(reversed(self.kept), version - self._every) + self._every
