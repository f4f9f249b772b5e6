"""The newest weights at the broker: rank 0 brings them, whoever acts fetches them. No sockets.

What arrives is verified by the Fetch; here stands who may bring it and what is asked for.
"""

from broker.blobs import Blob, Fetch, Kept
from broker.wire import Announce, Buffer, Chunk, Get


class Newest:
    """One broker's. Every method returns the messages to send."""

    def __init__(self) -> None:
        self.fetch = Fetch()
        self.blob: Blob | None = None  # newest whole weights
        self._kept = Kept()
        self._publisher = 0  # incarnation of the rank that announced last

    def announced(self, inc: int, announce: Announce) -> list[Get]:
        """The first chunk is on its way unasked."""
        self._publisher = inc
        gets = self.fetch.on_announce(announce)
        return [Get(get.version, max(1, get.lo), get.hi) for get in gets if get.hi > 1]

    def came_from(self, inc: int) -> bool:
        return inc == self._publisher

    def chunk(self, chunk: Chunk, body: Buffer) -> tuple[Blob | None, list[Get]]:
        """The blob when it is whole now, to be announced to all."""
        blob, more = self.fetch.on_chunk(chunk, body)
        if blob is not None:
            self.blob = blob
            self._kept.add(blob)
        return blob, more

    def again(self, inc: int) -> list[Get]:
        """Every beat of the publisher."""
        return self.fetch.again() if self.came_from(inc) else []

    def instead(self, get: Get) -> Announce | None:
        """Of a version that is no longer here."""
        return self._kept.instead(get)

    def wanted(self, get: Get) -> list[tuple[Chunk, memoryview]]:
        """What a Get is answered with."""
        return self._kept.chunks(get)
