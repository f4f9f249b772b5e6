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
    """Holds one whole version of the weights, in its chunks."""

    announce: Announce
    parts: tuple[Buffer, ...]  # what another version has in common may be the same memory

    @classmethod
    def of(cls, version: int, layout: str, body: Buffer) -> "Blob":
        view = memoryview(body).cast("B")
        size = chunk_size(len(view))
        parts = tuple(view[at : at + size] for at in range(0, len(view), size))
        hashes = b"".join(xxhash.xxh3_64_digest(part) for part in parts)
        digest = xxhash.xxh3_128_hexdigest(view)
        return cls(Announce(version, layout, digest, len(view), size, hashes), parts)

    @property
    def body(self) -> Buffer:
        """Returns all bytes; a copy, if there are several chunks."""
        return self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)

    def chunks(self, get: Get) -> list[tuple[Chunk, Buffer]]:
        """Returns the chunks that a Get asks for, as far as they exist."""
        return [(Chunk(self.announce.version, at), self.parts[at]) for at in self.indexes(get)]

    def indexes(self, get: Get) -> range:
        """Returns the indexes of the chunks that a Get asks for."""
        first = max(0, get.lo)
        return range(first, min(get.hi, count(self.announce), first + WINDOW))

    def first(self) -> tuple[Chunk, Buffer]:
        """Returns the chunk that goes out unasked: small weights need no second round trip."""
        return Chunk(self.announce.version, 0), self.parts[0]


def cut_alike(one: Announce, other: Announce) -> bool:
    """Tells whether the chunks of two versions are equally large."""
    return (one.layout, one.size, one.chunk) == (other.layout, other.size, other.chunk)


def chunk_size(nbytes: int) -> int:
    """Returns the bytes of each chunk of weights of so many bytes, but the last."""
    if nbytes > MAX_BYTES:
        raise ValueError(f"weights of {nbytes} bytes; at most {MAX_BYTES} travel")
    return max(CHUNK_BYTES, -(-nbytes // _MOST_CHUNKS))


def count(announce: Announce) -> int:
    return max(1, -(-announce.size // announce.chunk))


def newest(announces: Sequence[Announce]) -> Announce | None:
    """Returns the newest of several announcements; only that one matters."""
    return max(announces, key=lambda a: a.version, default=None)
