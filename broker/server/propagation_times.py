"""Measures how long new weights take from the broker to the samplers that act with them."""

from collections import OrderedDict
from typing import Final

from headrace.broker.histograms import Buckets

# Versions whose publication is remembered: a sampler that is further behind is not measured.
_MOST_TIMED: Final = 256


class PropagationTimes:
    """Measures how the newest weights spread: seconds from when a version was whole at the broker
    until a sampler acts with it. Pure; callers pass `now`."""

    def __init__(self) -> None:
        self.versions_published = 0  # versions that were whole here
        self.published_at = 0.0  # when the newest was, since 1970; 0 = none yet
        self.nbytes = 0  # of the newest
        self.ready = Buckets([0.01 * 2**n for n in range(14)])  # seconds from here to acting
        self._whole: OrderedDict[int, float] = OrderedDict()

    def published(self, version: int, nbytes: int, *, now: float, wall: float) -> None:
        """Notes that a version is whole here."""
        self.versions_published += 1
        self.published_at, self.nbytes = wall, nbytes
        self._whole[version] = now
        if len(self._whole) > _MOST_TIMED:
            self._whole.popitem(last=False)

    def first_used(self, version: int, *, now: float) -> None:
        """Notes that a sampler proved to act with a version."""
        began = self._whole.get(version)
        if began is not None:
            self.ready.add(now - began)
