"""Versions of the weights, their chunks and digests, pure; fetch.py is the receiving end.

    publisher   Announce -> (chunks as they are asked for; the first one unasked)
    receiver    Announce -> Get, Get, .. -> Chunk, Chunk, .. -> body, verified

A version is whole and right, or it is not there.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import xxhash

from headrace.broker.protocol.messages import Announce, Buffer, Chunk, Delta, Get, GetDelta
from headrace.broker.weights import deltas

# Small enough for a slow line: a peer whose chunk takes longer than a lease takes us for dead.
CHUNK_BYTES = 1 << 17
MOST_CHUNK_BYTES = 64 * CHUNK_BYTES
MAX_BYTES = 400 << 20  # the hashes of all chunks must fit one header
_KEPT, _KEPT_BYTES = 32, 8 << 20  # versions that a holder keeps at most; the newest always
# Of larger ones: the newest, and two before it while a peer is in the middle of fetching them; and
# what peers have who ask for changes.
_KEPT_FETCHED, _KEPT_BASES_BYTES = 3, 64 << 20
_MOST_CHUNKS = 400  # beyond, they are larger
_WORTH = 0.9  # changes that are no smaller than this part of a chunk are not sent
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


class KeptVersions:
    """Keeps the newest version and some before it: while versions follow each other quickly, a Get
    for one is still on its way when the next is here already."""

    def __init__(self) -> None:
        self._blobs: dict[int, Blob] = {}  # by version, least recently asked for first
        self._packed = deltas.PackedChunks()

    @property
    def nbytes(self) -> int:
        return sum(blob.announce.size for blob in self._blobs.values()) + self._packed.nbytes

    def add(self, blob: Blob, fetched: Collection[int] = (), bases: Collection[int] = ()) -> None:
        """Makes `blob` the newest. Small versions stay while there is room; of large ones those
        that are being `fetched`, so that a slow line ends what it began, and the `bases` of
        changes. Among those the one that was not asked for longest goes first: a peer that asks and
        does not read holds no place for long."""
        version, size = blob.announce.version, blob.announce.size
        needed = {*fetched, *bases}
        most = max(_KEPT_BASES_BYTES if bases else _KEPT_BYTES, _KEPT_FETCHED * size)
        self._blobs.pop(version, None)
        others = sorted(self._blobs, key=lambda other: other in needed)
        self._blobs[version] = blob
        for other in others:
            room = most if other in needed else max(_KEPT_BYTES, size)
            held = sum(one.announce.size for one in self._blobs.values())
            if held <= room and len(self._blobs) <= _KEPT:
                return
            del self._blobs[other]

    def chunks(self, get: Get) -> Sequence[tuple[Chunk, Buffer]]:
        """Returns the chunks that answer a Get; to a GetDelta what changed in them."""
        blob = self._blobs.pop(get.version, None)
        if blob is None:
            return []
        self._blobs[get.version] = blob
        if not isinstance(get, GetDelta):
            return blob.chunks(get)
        return [self.changes(chunk, get.base) or (chunk, part) for chunk, part in blob.chunks(get)]

    def changes(self, chunk: Chunk, base: int) -> tuple[Delta, bytes] | None:
        """Returns what changed in a chunk since version `base`; None where that is not here, or
        nearly as much as the chunk."""
        now, before = self._blobs.get(chunk.version), self._blobs.get(base)
        if now is None or before is None or not before.fits(now.announce):
            return None
        part, old = now.part(chunk.index), before.part(chunk.index)
        packed = self._packed.get(
            (now.announce.digest, before.announce.digest, chunk.index),
            lambda: deltas.pack(part, old),
        )
        if len(packed) > _WORTH * len(part):
            return None
        return Delta(chunk.version, chunk.index, base), packed

    def indexes(self, get: Get) -> range:
        """Returns the indexes of the chunks that answer a Get."""
        blob = self._blobs.get(get.version)
        return blob.indexes(get) if blob is not None else range(0)

    def newer_instead(self, get: Get) -> Announce | None:
        """Returns the newest version when the one asked for is no longer here. On a line with a
        delay longer than they are kept, a version asked for would otherwise never be here."""
        if get.version in self._blobs:
            return None
        found = newest([blob.announce for blob in self._blobs.values()])
        return found if found is not None and get.version < found.version else None


def count(announce: Announce) -> int:
    return max(1, -(-announce.size // announce.chunk))


def newest(announces: Sequence[Announce]) -> Announce | None:
    """Returns the newest of several announcements; only that one matters."""
    return max(announces, key=lambda a: a.version, default=None)
