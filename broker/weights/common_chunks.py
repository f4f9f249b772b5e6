"""What two versions of the weights have in common, by the hashes of their chunks. Pure.

Of a population few policies train in each version, and most chunks stay as they were.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import xxhash

from headrace.broker.protocol.messages import Announce, Buffer
from headrace.broker.weights.blobs import Blob, chunk_size


def same_chunks(one: Announce, other: Announce) -> list[int]:
    """Returns the indexes of the chunks that are the same in both."""
    if (one.layout, one.size, one.chunk) != (other.layout, other.size, other.chunk):
        return []
    if one.size <= one.chunk:  # most networks; numpy would cost more than all else of a fetch
        return [0] if one.hashes == other.hashes else []
    hashes = (np.frombuffer(announce.hashes, np.uint64) for announce in (one, other))
    common: list[int] = np.flatnonzero(np.equal(*hashes)).tolist()
    return common


def changed_pieces(blob: Blob, before: Blob | None) -> list[tuple[int, Buffer]]:
    """Returns the chunks that the version `before` has otherwise, and where they lie."""
    known = set(same_chunks(blob.announce, before.announce)) if before is not None else ()
    size = blob.announce.chunk
    return [(at * size, part) for at, part in enumerate(blob.parts) if at not in known]


def blob_of(
    version: int, layout: str, body: Buffer | tuple[Buffer, ...], before: Blob | None
) -> Blob:
    """Describes a version by its bytes, or by its chunks: then the hash of one that is the same
    memory in the version `before` is known."""
    if not isinstance(body, tuple):
        return Blob.of(version, layout, body)
    known = before.parts if before is not None else ()
    nbytes, hashes = sum(map(len, body)), []
    for at, part in enumerate(body):
        if before is not None and at < len(known) and part is known[at]:
            hashes.append(before.announce.hashes[8 * at : 8 * at + 8])
        else:
            hashes.append(xxhash.xxh3_64_digest(part))
    size, joined = chunk_size(nbytes), b"".join(hashes)
    return Blob(Announce(version, layout, digest_of(body), nbytes, size, joined), body)


def digest_of(parts: Sequence[Buffer]) -> str:
    """Returns the digest of all bytes."""
    digest = xxhash.xxh3_128()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def runs(indexes: Iterable[int]) -> list[tuple[int, int]]:
    """Returns rising indexes as ranges: the first of each, and the one behind its last."""
    found: list[tuple[int, int]] = []
    for at in indexes:
        if found and found[-1][1] == at:
            found[-1] = (found[-1][0], at + 1)
        else:
            found.append((at, at + 1))
    return found
