"""The newest weights at the broker: rank 0 brings them, whoever acts fetches them. No sockets.

What arrives is verified by the Fetch; here stands who may bring it and what is asked for.
"""

from collections.abc import Callable, Collection

from broker.blobs import Blob, Fetch, Kept
from broker.wire import Announce, Buffer, Chunk, Get


class Newest:
    """One broker's. Every method returns the messages to send."""

    def __init__(self) -> None:
        self.fetch = Fetch()
        self.blob: Blob | None = None  # newest whole weights, its chunks apart
        self._kept = Kept()
        self._publisher = 0  # incarnation of the rank that announced last

    @property
    def nbytes(self) -> int:
        """Bytes of weights in memory: what comes in, and all versions that are kept."""
        return self.fetch.nbytes + self._kept.nbytes

    def announced(self, inc: int, announce: Announce) -> list[Get]:
        """The first chunk is on its way unasked."""
        self._publisher = inc
        gets = self.fetch.on_announce(announce)
        return [Get(get.version, max(1, get.lo), get.hi) for get in gets if get.hi > 1]

    def came_from(self, inc: int) -> bool:
        return inc == self._publisher

    def chunk(
        self, chunk: Chunk, body: Buffer, fetched: Callable[[], Collection[int]]
    ) -> tuple[Blob | None, list[Get]]:
        """The blob when it is whole now, to be announced to all. `fetched`: versions that peers
        are in the middle of."""
        blob, more = self.fetch.on_chunk(chunk, body)
        if blob is not None:
            self.blob = blob.apart()
            self._kept.add(self.blob, fetched())
        return self.blob if blob is not None else None, more

    def again(self, inc: int) -> list[Get]:
        """Every beat of the publisher."""
        return self.fetch.again() if self.came_from(inc) else []

    def instead(self, get: Get) -> Announce | None:
        """Of a version that is no longer here."""
        return self._kept.instead(get)

    def indexes(self, get: Get) -> range:
        """The chunks that a Get asks for, as far as they exist."""
        return self._kept.indexes(get)

    def piece(self, version: int, index: int) -> tuple[Chunk, memoryview] | None:
        """Returns one chunk of a version; None = it is not here, or no longer."""
        found = self._kept.chunks(Get(version, index, index + 1))
        return found[0] if found else None
