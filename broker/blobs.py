"""Weights in flight, pure: versions, chunks, digests.

    publisher   Announce -> (chunks as they are asked for; the first one unasked)
    receiver    Announce -> Get, Get, .. -> Chunk, Chunk, .. -> body, verified

A version is whole and right, or it is not there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import xxhash

from broker.wire import Announce, Buffer, Chunk, Get

CHUNK_BYTES = 1 << 20
MAX_BYTES = 400 << 20  # the hashes of all chunks must fit one header
# Chunks asked for at a time: the window keeps a fetch from filling the pipe that unrolls use.
WINDOW = 8


@dataclass(frozen=True, slots=True)
class Blob:
    """One version of the weights, whole."""

    announce: Announce
    body: memoryview

    @classmethod
    def of(cls, version: int, layout: str, body: Buffer) -> "Blob":
        view = memoryview(body).cast("B")
        if len(view) > MAX_BYTES:
            raise ValueError(f"weights of {len(view)} bytes; at most {MAX_BYTES} travel")
        parts = [view[at : at + CHUNK_BYTES] for at in range(0, len(view), CHUNK_BYTES)]
        hashes = b"".join(xxhash.xxh3_64_digest(part) for part in parts)
        digest = xxhash.xxh3_128_hexdigest(view)
        return cls(Announce(version, layout, digest, len(view), CHUNK_BYTES, hashes), view)

    def chunks(self, get: Get) -> list[tuple[Chunk, memoryview]]:
        """What a Get asks for, as far as it exists."""
        first = max(0, get.lo)
        last = min(get.hi, count(self.announce), first + WINDOW)
        return [(Chunk(self.announce.version, at), self._part(at)) for at in range(first, last)]

    def first(self) -> tuple[Chunk, memoryview]:
        """The chunk that goes out unasked: small weights need no second round trip."""
        return Chunk(self.announce.version, 0), self._part(0)

    def _part(self, index: int) -> memoryview:
        return self.body[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES]


def count(announce: Announce) -> int:
    return max(1, -(-announce.size // announce.chunk))


class Fetch:
    """Receives versions, one at a time, the newest announced next."""

    def __init__(self) -> None:
        self.version = -1  # of the newest whole blob
        self.refused = 0  # chunks and bodies whose hash was wrong
        self._current: Announce | None = None
        self._next: Announce | None = None  # announced while another is on its way
        self._body = bytearray()
        self._have: set[int] = set()
        self._asked = 0  # chunks below were asked for
        self._moved = False  # a chunk came in since the last beat

    @property
    def busy(self) -> bool:
        return self._current is not None

    def on_announce(self, announce: Announce) -> list[Get]:
        """Begin with it, or keep it for when the one on its way is whole."""
        if not _sane(announce) or announce.version <= self.version:
            return []
        if self._current is not None and announce.version <= self._current.version:
            return []
        if self._current is not None and 2 * len(self._have) > count(self._current):
            self._next = newest([announce, *filter(None, [self._next])])
            return []
        return self._begin(announce)

    def on_chunk(self, chunk: Chunk, body: Buffer) -> tuple[Blob | None, list[Get]]:
        """A whole blob when this was the last chunk, and what to ask for now."""
        current = self._current
        if current is None or chunk.version != current.version:
            return None, []
        if not 0 <= chunk.index < count(current):
            self.refused += 1
            return None, []
        if not self._store(current, chunk.index, body):
            self.refused += 1
            return None, [Get(current.version, chunk.index, chunk.index + 1)]
        self._moved = True
        if len(self._have) < count(current):
            return None, self._ask(current)
        self._current = None
        blob = self._whole(current)  # before the body of the following one takes its place
        following, self._next = self._next, None
        return blob, self._begin(following) if following is not None else []

    def again(self) -> list[Get]:
        """Every beat. One without progress asks for what is missing, window by window, or turns to
        the following version: who sends may have dropped this one for it."""
        moved, self._moved = self._moved, False
        if self._current is None or moved:
            return []
        if self._next is not None:
            return self._begin(self._next)
        absent = [at for at in range(self._asked) if at not in self._have][:WINDOW]
        return [Get(self._current.version, at, at + 1) for at in absent]

    def reset(self, version: int) -> None:
        """Another broker, at this version: what was half here is gone, and if it begins below us
        (broker and learner both came back from older state) its weights are the newer ones."""
        self._current = self._next = None
        if version < self.version:
            self.version = -1

    def _begin(self, announce: Announce) -> list[Get]:
        self._current, self._next = announce, None
        self._body = bytearray(announce.size)
        self._have.clear()
        self._asked = 0
        self._moved = True
        return self._ask(announce)

    def _ask(self, announce: Announce) -> list[Get]:
        """The next window, once the one before is here."""
        if len(self._have) < self._asked:
            return []
        lo = self._asked
        self._asked = min(count(announce), lo + WINDOW)
        return [Get(announce.version, lo, self._asked)]

    def _store(self, announce: Announce, index: int, body: Buffer) -> bool:
        at = index * announce.chunk
        size = min(announce.chunk, announce.size - at)
        expected = announce.hashes[8 * index : 8 * index + 8]
        if len(body) != size or xxhash.xxh3_64_digest(body) != expected:
            return False
        self._body[at : at + size] = body
        self._have.add(index)
        return True

    def _whole(self, announce: Announce) -> Blob | None:
        if xxhash.xxh3_128_hexdigest(self._body) != announce.digest:
            self.refused += 1
            return None
        self.version = announce.version
        return Blob(announce, memoryview(self._body))


def _sane(announce: Announce) -> bool:
    return (
        0 < announce.size <= MAX_BYTES
        and 0 < announce.chunk <= 64 * CHUNK_BYTES
        and len(announce.hashes) == 8 * count(announce)
    )


def newest(announces: Sequence[Announce]) -> Announce | None:
    """Of several that waited, only the last matters."""
    return max(announces, key=lambda a: a.version, default=None)
