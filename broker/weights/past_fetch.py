"""Fetches versions from before the newest, one after the other. Pure."""

from collections import deque

from headrace.broker.protocol.messages import Announce, Buffer, Chunk, Get
from headrace.broker.weights.blobs import Blob
from headrace.broker.weights.fetch import WeightFetch

_MOST = 64  # a league keeps no more
_GIVES_UP = 20  # beats without a chunk that fits: its sender may have forgotten them meanwhile


class PastFetch:
    """Receives the versions that a newcomer is told of, oldest first."""

    def __init__(self) -> None:
        self._fetch = WeightFetch()
        self._waiting: deque[Announce] = deque()  # the first of them is on its way
        self._known: set[int] = set()  # versions that it was told of
        self._idle = 0  # beats since a chunk came that fits

    @property
    def busy(self) -> bool:
        return bool(self._waiting)

    def wants(self, chunk: Chunk) -> bool:
        """Tells whether the chunk is of the version that is on its way."""
        return bool(self._waiting) and chunk.version == self._waiting[0].version

    def on_announce(self, announce: Announce) -> list[Get]:
        if announce.version in self._known or len(self._known) >= _MOST:
            return []
        self._known.add(announce.version)
        self._waiting.append(announce)
        return self._begin() if len(self._waiting) == 1 else []

    def on_chunk(self, chunk: Chunk, body: Buffer) -> tuple[Blob | None, list[Get]]:
        """Returns the whole version when this was its last chunk, and what to ask for now."""
        refused = self._fetch.refused
        blob, more = self._fetch.on_chunk(chunk, body)
        if self._fetch.refused == refused:
            self._idle = 0
        if blob is None:
            return None, more
        self._waiting.popleft()
        return blob, self._begin()

    def beat(self) -> list[Get]:
        """Asks again for what did not come; gives up when nothing comes any more."""
        self._idle = self._idle + 1 if self._waiting else 0
        if self._idle > _GIVES_UP:
            self._waiting.clear()
        return self._fetch.ask_missing() if self._waiting else []

    def _begin(self) -> list[Get]:
        return self._fetch.on_announce(self._waiting[0]) if self._waiting else []
