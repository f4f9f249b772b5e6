"""The versions of the weights that a holder keeps, and the chunks that it answers with. Pure."""

from collections.abc import Collection, Sequence

from headrace.broker.protocol.messages import Announce, Buffer, Chunk, Delta, Get, GetDelta
from headrace.broker.weights import deltas
from headrace.broker.weights.blobs import Blob, cut_alike, newest
from headrace.broker.weights.snapshots import Snapshots

_KEPT, _KEPT_BYTES = 32, 8 << 20  # versions that a holder keeps at most; the newest always
# Of larger ones: the newest, and two before it while a peer is in the middle of fetching them; and
# what peers have who ask for changes.
_KEPT_FETCHED, _KEPT_BASES_BYTES = 3, 64 << 20
_PAST_BYTES = 256 << 20  # of those that a league may meet
_WORTH = 0.9  # changes that are no smaller than this part of a chunk are not sent


class KeptVersions:
    """Keeps the newest version and some before it: while versions follow each other quickly, a Get
    for one is still on its way when the next is here already."""

    def __init__(self) -> None:
        self._blobs: dict[int, Blob] = {}  # by version, least recently asked for first
        self._packed = deltas.PackedChunks()
        self.past: Snapshots[Blob] = Snapshots(every=1, keep=0)  # of these, for a league

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
        self.past.undo(version)
        if self.past.due(version) and size * self.past.most <= _PAST_BYTES:
            self.past.add(version, blob)
        most = max(_KEPT_BASES_BYTES if bases else _KEPT_BYTES, _KEPT_FETCHED * size)
        self._blobs.pop(version, None)
        self._blobs[version] = blob
        free = {v: one.announce.size for v, one in self._blobs.items() if v not in self.past.kept}
        for other in sorted((v for v in free if v != version), key=lambda v: v in needed):
            room = most if other in needed else max(_KEPT_BYTES, size)
            if sum(free.values()) <= room and len(free) <= _KEPT:
                return
            del self._blobs[other], free[other]

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
        if now is None or before is None or not cut_alike(before.announce, now.announce):
            return None
        part, old = now.parts[chunk.index], before.parts[chunk.index]
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
