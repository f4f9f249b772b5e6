"""Versions of the weights, their chunks and digests, pure; fetch.py is the receiving end.

    publisher   Announce -> (chunks as they are asked for; the first one unasked)
    receiver    Announce -> Get, Get, .. -> Chunk, Chunk, .. -> body, verified

A version is whole and right, or it is not there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import xxhash

from headrace.broker.protocol.messages import Announce, Buffer, Chunk, Get

# Small enough for a slow line: a peer whose chunk takes longer than a lease takes us for dead.
CHUNK_BYTES = 1 << 17
MOST_CHUNK_BYTES = 64 * CHUNK_BYTES
MAX_BYTES = 400 << 20  # the hashes of all chunks must fit one header
_MOST_CHUNKS = 400  # beyond, they are larger
# Chunks asked for at a time: the window keeps a fetch from filling the pipe that unrolls use.
WINDOW = 64


@dataclass(frozen=True, slots=True)
class Blob:
    """Holds one whole version of the weights."""

    announce: Announce
    body: memoryview  # empty when the chunks are apart
    parts: tuple[bytes, ...] = ()  # the chunks, where they are apart

    @classmethod
    def of(cls, version: int, layout: str, body: Buffer) -> "Blob":
        view = memoryview(body).cast("B")
        if len(view) > MAX_BYTES:
            raise ValueError(f"weights of {len(view)} bytes; at most {MAX_BYTES} travel")
        size = max(CHUNK_BYTES, -(-len(view) // _MOST_CHUNKS))
        parts = [view[at : at + size] for at in range(0, len(view), size)]
        hashes = b"".join(xxhash.xxh3_64_digest(part) for part in parts)
        digest = xxhash.xxh3_128_hexdigest(view)
        return cls(Announce(version, layout, digest, len(view), size, hashes), view)

    def chunks(self, get: Get) -> list[tuple[Chunk, memoryview]]:
        """Returns the chunks that a Get asks for, as far as they exist."""
        return [(Chunk(self.announce.version, at), self.part(at)) for at in self.indexes(get)]

    def fits(self, other: Announce) -> bool:
        """Tells whether the chunks of the other version are as large as ours."""
        ours = self.announce
        return (ours.layout, ours.size, ours.chunk) == (other.layout, other.size, other.chunk)

    def indexes(self, get: Get) -> range:
        """Returns the indexes of the chunks that a Get asks for."""
        first = max(0, get.lo)
        return range(first, min(get.hi, count(self.announce), first + WINDOW))

    def first(self) -> tuple[Chunk, memoryview]:
        """Returns the chunk that goes out unasked: small weights need no second round trip."""
        return Chunk(self.announce.version, 0), self.part(0)

    def with_own_chunks(self) -> "Blob":
        """Returns the version with each chunk in memory of its own: what is still on its way to a
        slow peer then keeps that chunk in memory, and not the whole version."""
        parts = tuple(bytes(self.part(index)) for index in range(count(self.announce)))
        return Blob(self.announce, memoryview(b""), parts)

    def part(self, index: int) -> memoryview:
        """Returns the chunk as it was announced: the hashes are of these pieces."""
        if self.parts:
            return memoryview(self.parts[index])
        size = self.announce.chunk
        return self.body[index * size : (index + 1) * size]


def count(announce: Announce) -> int:
    return max(1, -(-announce.size // announce.chunk))


def newest(announces: Sequence[Announce]) -> Announce | None:
    """Returns the newest of several announcements; only that one matters."""
    return max(announces, key=lambda a: a.version, default=None)
