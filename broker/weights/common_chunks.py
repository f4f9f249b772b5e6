"""Finds what two versions of the weights have in common, by the hashes of their chunks. Pure.

Of a population few policies train in each version, and most chunks stay as they were.
"""

from collections.abc import Sequence

import numpy as np
import xxhash

from headrace.broker.protocol.messages import Announce, Buffer
from headrace.broker.weights.blobs import Blob, chunk_size, count, cut_alike

# The share of its chunks that a version must have in common with the one before, so that it is kept
# in memory for the next: most networks change everywhere.
_WORTH_KEEPING = 1 / 8


def same_chunks(one: Announce, other: Announce) -> list[int]:
    """Returns the indexes of the chunks that are the same in both."""
    if not cut_alike(one, other):
        return []
    if one.size <= one.chunk:  # most networks; numpy would cost more than all else of a fetch
        return [0] if one.hashes == other.hashes else []
    hashes = (np.frombuffer(announce.hashes, np.uint64) for announce in (one, other))
    common: list[int] = np.flatnonzero(np.equal(*hashes)).tolist()
    return common


def worth_keeping(announce: Announce, before: Announce | None) -> bool:
    """Tells whether the version after it will have much in common with it, as it has with `before`,
    the one before it."""
    same = same_chunks(announce, before) if before is not None else ()
    return len(same) >= _WORTH_KEEPING * count(announce)


def changed_pieces(blob: Blob, before: Announce | None) -> list[tuple[int, Buffer]]:
    """Returns the chunks that the version `before` has otherwise, and where they lie."""
    known = set(same_chunks(blob.announce, before)) if before is not None else ()
    size = blob.announce.chunk
    return [(at * size, part) for at, part in enumerate(blob.parts) if at not in known]


class Versions:
    """Describes version after version of weights, by their bytes or by their chunks: the hash of a
    chunk that is the same memory as in the version before is known."""

    def __init__(self, layout: str) -> None:
        self._layout = layout
        self._before: Blob | None = None  # the newest

    def of(self, version: int, body: Buffer | tuple[Buffer, ...]) -> Blob:
        """Returns the version, which is the newest now."""
        if isinstance(body, tuple):
            self._before = self._of_chunks(version, body)
        else:
            self._before = Blob.of(version, self._layout, body)
        return self._before

    def _of_chunks(self, version: int, chunks: tuple[Buffer, ...]) -> Blob:
        known = () if self._before is None else self._before.parts
        nbytes, hashes = sum(map(len, chunks)), []
        for at, chunk in enumerate(chunks):
            if self._before is not None and at < len(known) and chunk is known[at]:
                hashes.append(self._before.announce.hashes[8 * at : 8 * at + 8])
            else:
                hashes.append(xxhash.xxh3_64_digest(chunk))
        size, digest = chunk_size(nbytes), digest_of(chunks)
        said = Announce(version, self._layout, digest, nbytes, size, b"".join(hashes))
        return Blob(said, chunks)


def digest_of(parts: Sequence[Buffer]) -> str:
    """Returns the digest of all bytes."""
    digest = xxhash.xxh3_128()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
