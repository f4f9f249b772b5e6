"""Gets weights from the machine's shelf, and decides when to ask the broker instead. Pure but for
the shelf; the clock is handed in.

    announced --> on the shelf: taken
             |
             +--> the shelf has no live writer, or nothing moves there --> asked of the broker;
                  from then on at once, until the shelf has a writer and has moved again

While something is awaited the shelf is polled every 2 ms. A poll costs two microseconds, so that is
a thousandth of a core, and only until the weights are here; they are late by half of it.
"""

import asyncio
from pathlib import Path
from typing import Final

from headrace.broker.protocol.messages import Announce
from headrace.broker.weights.blobs import Blob
from headrace.broker.weights.weight_shelf import SegmentReader, Snapshot

POLL_EVERY_S: Final = 0.002
# Without a relay: it may be starting just now, and hears of weights when we do.
_UNATTENDED_S: Final = 0.3
# With one: nothing moved for this time. It may hear of them by a beat only, and its line be slow.
_STUCK_S: Final = 5.0
# Versions announced and not here: beyond this number the oldest are not waited for.
_MOST_AWAITED: Final = 64


class ShelfReader:
    """Follows the shelf for one sampler."""

    def __init__(self, path: Path) -> None:
        self.awaits = asyncio.Event()  # set while something announced is not here
        self._reader = SegmentReader(path)
        self._awaited: dict[int, Announce] = {}  # by version
        self._since = 0.0  # since then nothing came that was awaited
        self._broker_since: float | None = None  # the broker is asked since then; None = it is not

    def announced(self, announce: Announce, now: float) -> bool:
        """Decides where to get an announced version. True: wait for it here. False: ask the
        broker."""
        if self._awaited.get(announce.version) != announce:
            if not self._awaited:
                self._since = now
            self._awaited[announce.version] = announce
            if len(self._awaited) > _MOST_AWAITED:
                del self._awaited[min(self._awaited)]
            self.awaits.set()
        return not self._bypasses_shelf(self._reader.look(), now)

    def poll(self, now: float) -> tuple[Blob | None, Announce | None]:
        """Returns the weights that came, and the version to ask the broker for."""
        seen = self._reader.look()
        blob = self._take(seen)
        if blob is not None:
            self._since, self._broker_since = now, None
            self.received(blob.announce.version)
            return blob, None
        if not self._awaited or self._bypasses_shelf(seen, now) or not self._is_stuck(seen, now):
            return None, None
        self._broker_since = now
        return None, self._awaited[max(self._awaited)]

    def received(self, version: int) -> None:
        """Notes a version that is here, by whichever way; nothing older is needed."""
        for older in [known for known in self._awaited if known <= version]:
            del self._awaited[older]
        if not self._awaited:
            self.awaits.clear()

    def reset(self) -> None:
        """Forgets the announcements of the broker before: they mean nothing to another one."""
        self._awaited.clear()
        self.awaits.clear()

    def _take(self, seen: Snapshot | None) -> Blob | None:
        """Takes only what was announced: a broker that came back may give other weights an old
        number."""
        wanted = self._awaited.get(seen.version) if seen is not None else None
        if seen is None or wanted is None or wanted.digest != seen.digest:
            return None
        blob = self._reader.take(seen.version - 1)
        right = blob is not None and blob.announce == wanted
        return blob if right else None

    def _is_stuck(self, seen: Snapshot | None, now: float) -> bool:
        if seen is None or not seen.attended:
            return now - self._since > _UNATTENDED_S
        return now - max(self._since, seen.moved_s) > _STUCK_S

    def _bypasses_shelf(self, seen: Snapshot | None, now: float) -> bool:
        """Tells whether we do without the shelf."""
        if self._broker_since is None:
            return False
        if seen is not None and seen.attended and seen.moved_s > self._broker_since:
            self._since, self._broker_since = now, None
        return self._broker_since is not None
