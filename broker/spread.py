"""How the newest weights spread: when each was whole at the broker, and how soon samplers act with
it. Pure; callers pass `now`."""

from collections import OrderedDict
from typing import Final

from broker.buckets import Buckets

# Versions whose moment is remembered: who takes longer than these is not measured.
_MOST: Final = 256


class Spread:
    """One broker's."""

    def __init__(self) -> None:
        self.published = 0  # versions that were whole here
        self.published_at = 0.0  # when the newest was, since 1970; 0 = none yet
        self.nbytes = 0  # of the newest
        self.ready = Buckets([0.01 * 2**n for n in range(14)])  # seconds from here to acting
        self._whole: OrderedDict[int, float] = OrderedDict()

    def whole(self, version: int, nbytes: int, *, now: float, wall: float) -> None:
        self.published += 1
        self.published_at, self.nbytes = wall, nbytes
        self._whole[version] = now
        if len(self._whole) > _MOST:
            self._whole.popitem(last=False)

    def acts(self, version: int, *, now: float) -> None:
        """A sampler proved to act with it."""
        began = self._whole.get(version)
        if began is not None:
            self.ready.add(now - began)
