"""Fetches weights: asks for the chunks of a version until it is whole. Pure.

Chunks that the version has in common with the one that is here are taken from there: of a
population, of which few policies train in each version, most are.
"""

from collections import deque
from collections.abc import Collection

import xxhash

from headrace.broker.protocol.fields import MAX_VERSION
from headrace.broker.protocol.messages import Announce, Buffer, Chunk, Delta, Get, GetDelta, ranges
from headrace.broker.weights import blobs, deltas
from headrace.broker.weights.blobs import Blob, count, cut_alike, newest
from headrace.broker.weights.common_chunks import digest_of, same_chunks, worth_keeping

# Small versions that are asked for at a time: far fewer than a holder keeps.
_AT_ONCE = 16
# Beats without a chunk before it is asked for again. On a slow line it may be on its way still, and
# would come twice: so each time that nothing came the next wait is twice as long.
_PATIENCE = (2, 64)


class WeightFetch:
    """Receives versions, one at a time, the newest announced next.

    Small ones are asked for behind the one that is on its way: on a long line one round trip is not
    waited for after the other.
    """

    def __init__(self) -> None:
        self.version = -1  # of the newest whole blob
        self.carried = 0  # bytes of its chunks that had to come
        self.refused = 0  # chunks and bodies whose hash was wrong
        self.by_changes = False  # ask for what changed since the version that is here
        # That version, where its chunks may be of use for the next, and those before whose changes
        # are on their way.
        self._bases: dict[int, Blob] = {}
        self._before: Announce | None = None  # of the newest whole blob
        self._current: Announce | None = None
        # Asked for behind it, older first: one chunk each, and together no more than a large one.
        self._behind: deque[Announce] = deque()
        self._next: Announce | None = None  # announced while others are on their way
        self._have: dict[int, Buffer] = {}  # its chunks
        self._came = 0  # bytes of it that came by the wire
        self._awaited: set[int] = set()  # asked for, and not here
        self._left: deque[int] = deque()  # to ask for after these
        self._spoilt: set[int] = set()  # chunks that came wrong and were asked for, this beat
        self._moved = False  # a chunk came in since the last beat, of whatever version
        self._patience = _PATIENCE[0]  # beats
        self._waited = 0  # beats without a chunk

    @property
    def nbytes(self) -> int:
        """Returns the bytes of the version that comes in, and of those kept for changes."""
        coming = self._current.size if self._current is not None else 0
        return coming + sum(blob.announce.size for blob in self._bases.values())

    @property
    def busy(self) -> bool:
        return self._current is not None

    def on_announce(self, announce: Announce) -> list[Get]:
        """Begins with it, or keeps it for when the one on its way is whole: where versions come
        faster than the line carries one, none would ever be."""
        if not _sane(announce) or announce.version <= self.version:
            return []
        current = self._current
        last = self._behind[-1] if self._behind else current
        # The same version with another content: its publisher died and a new one repeats it.
        if last is not None and (announce.version < last.version or announce == last):
            return []
        if current is None or (announce.version == current.version and not self._late()):
            return self._begin(announce)
        if self._fits_behind(current, announce):
            self._behind.append(announce)
            return [self._get(announce, 0, 1)]
        self._next = newest([announce, *filter(None, [self._next])])
        return []

    def on_chunk(self, chunk: Chunk, body: Buffer) -> tuple[Blob | None, list[Get]]:
        """Returns the whole blob when this was the last chunk, and what to ask for now."""
        if not self._came or chunk.index:  # the first may come unasked
            self._turn_to(chunk.version)
        current = self._current
        if current is None or chunk.version != current.version:
            # Chunks of a version that we gave up still come; those of this one are behind them.
            self._moved |= current is not None and chunk.version < current.version
            return None, []
        if not 0 <= chunk.index < count(current):
            self.refused += 1
            return None, []
        if not self._store(current, chunk.index, self._unpacked(current, chunk, body)):
            self.refused += 1
            return None, self._once_more(chunk)
        self._moved = True
        if len(self._have) < count(current):
            return None, self._ask(current)
        self._current = None
        self._patience = max(_PATIENCE[0], self._patience - 1)
        blob = self._whole(current)  # before the chunks of the following one take their place
        return blob, self._go_on()

    def ask_missing(self) -> list[Get]:
        """Asks once a beat for what is missing, window by window, after some beats without
        progress; or turns to the following version, for which the sender may have dropped this
        one."""
        moved, self._moved = self._moved, False
        self._spoilt.clear()
        self._waited = 0 if moved else self._waited + 1
        if self._current is None or self._waited < self._patience:
            return []
        self._waited, self._patience = 0, min(2 * self._patience, _PATIENCE[1])
        following = newest([*self._behind, *filter(None, [self._next])])
        if following is not None:
            return self._begin(following)
        return [Get(self._current.version, at, at + 1) for at in sorted(self._awaited)]

    def reconnected(self) -> None:
        """Makes the next beat ask at once: what was on its way was lost with the old connection."""
        self._moved = False
        self._waited = self._patience = _PATIENCE[0]

    def skip_to(self, version: int) -> list[Get]:
        """Notes that this version is here, by another way: what is not newer need not come."""
        self.version = max(self.version, version)
        if self._current is None or self._current.version > version:
            return []
        self._current = None
        return self._go_on()

    def reset(self, version: int) -> None:
        """Begins with another broker, at this version: drops what was half here. If it begins below
        us (broker and learner both came back from older state) its weights are the newer ones."""
        self._current = self._next = None
        self._forget_before()
        self._behind.clear()
        self._patience = _PATIENCE[0]
        if version < self.version:
            self.version = -1

    def _begin(self, announce: Announce) -> list[Get]:
        """Turns to this version, and gives up all others."""
        self._behind.clear()
        self._next = None
        self._expect(announce)
        return self._ask(announce)

    def _go_on(self) -> list[Get]:
        """Turns to the next version, once the one on its way is here or need not come."""
        while self._current is None and self._behind:
            announce = self._behind.popleft()
            if announce.version > self.version:
                self._expect(announce, asked=(0,))
        following, self._next = self._next, None
        return self.on_announce(following) if following is not None else []

    def _turn_to(self, version: int) -> None:
        """Turns to a later version whose chunk comes in place of one that was asked for: its sender
        has that one no more, because versions came faster than the Get."""
        if self._current is None or version == self._current.version:
            return
        if version in [announce.version for announce in self._behind]:
            while (announce := self._behind.popleft()).version < version:
                pass
            self._expect(announce, asked=(0,))
        elif self._next is not None and self._next.version == version:
            announce, self._next = self._next, None
            self._expect(announce, asked=self._awaited)

    def _expect(self, announce: Announce, *, asked: Collection[int] = ()) -> None:
        """Prepares for the chunks of this version: all but those that the version here has in
        common with it. The first always comes, and is the last of a version that is the same."""
        self._current = announce
        base = self._bases.get(self.version)
        same = same_chunks(announce, base.announce) if base is not None else []
        self._have = {at: base.parts[at] for at in same if at} if base is not None else {}
        self._spoilt.clear()
        missing = [at for at in range(count(announce)) if at not in self._have]
        self._awaited = set(asked).intersection(missing)
        self._left = deque(at for at in missing if at not in self._awaited)
        self._came, self._moved = 0, True

    def _fits_behind(self, current: Announce, announce: Announce) -> bool:
        others = (current, *self._behind)
        return (
            announce.version > others[-1].version
            and len(others) < _AT_ONCE
            and sum(other.size for other in (*others, announce)) <= blobs.CHUNK_BYTES
        )

    def _late(self) -> bool:
        """Tells whether more than half is here."""
        return self._current is not None and 2 * len(self._have) > count(self._current)

    def _ask(self, announce: Announce) -> list[Get]:
        """Asks for the next window, once the one before is here."""
        if self._awaited:
            return []
        window: list[int] = []
        while self._left and len(window) < blobs.WINDOW:
            at = self._left.popleft()
            window += [at] if at not in self._have else []
        self._awaited.update(window)
        return [self._get(announce, lo, hi) for lo, hi in ranges(window)]

    def _get(self, announce: Announce, lo: int, hi: int) -> Get:
        """Asks for chunks; for their changes where the version that is here has such chunks."""
        base = self._bases.get(self.version)
        if not self.by_changes or base is None or not cut_alike(base.announce, announce):
            return Get(announce.version, lo, hi)
        return GetDelta(announce.version, lo, hi, self.version)

    def _unpacked(self, announce: Announce, chunk: Chunk, body: Buffer) -> Buffer:
        """Returns the bytes of a chunk, also of one that came as changes; none if those are of a
        version that is not here."""
        if not isinstance(chunk, Delta):
            return body
        base = self._bases.get(chunk.base)
        if base is None or not cut_alike(base.announce, announce):
            return b""
        try:
            return deltas.unpack(body, base.parts[chunk.index])
        except deltas.NotPacked:
            return b""

    def _keep_base(self, blob: Blob) -> None:
        """Keeps a version for changes that are asked for, or because it had much in common with the
        one before; of small ones also those before, of which changes are on their way."""
        before, self._before = self._before, blob.announce
        if not self.by_changes and not worth_keeping(blob.announce, before):
            self._bases.clear()
            return
        self._bases[blob.announce.version] = blob
        size = blob.announce.size
        while len(self._bases) > _AT_ONCE + 1 or len(self._bases) * size > blobs.CHUNK_BYTES + size:
            del self._bases[next(iter(self._bases))]

    def _forget_before(self) -> None:
        self._bases.clear()
        self._before = None

    def _once_more(self, chunk: Chunk) -> list[Get]:
        """Asks for a wrong chunk again, at once but only once a beat: from a holder whose copy is
        wrong it would come as fast as the wire carries it."""
        if chunk.index in self._spoilt or chunk.index in self._have:
            return []
        self._spoilt.add(chunk.index)
        return [Get(chunk.version, chunk.index, chunk.index + 1)]

    def _store(self, announce: Announce, index: int, body: Buffer) -> bool:
        size = min(announce.chunk, announce.size - index * announce.chunk)
        expected = announce.hashes[8 * index : 8 * index + 8]
        if len(body) != size or xxhash.xxh3_64_digest(body) != expected:
            return False
        # Not what it came in, which may be longer: its own memory.
        self._have[index] = bytes(body)
        self._awaited.discard(index)
        self._came += size
        return True

    def _whole(self, announce: Announce) -> Blob | None:
        have, self._have = self._have, {}
        parts = tuple(have[at] for at in range(count(announce)))
        if digest_of(parts) != announce.digest:
            self.refused += 1
            self._forget_before()  # the next try takes nothing from there
            return None
        self.version, self.carried = announce.version, self._came
        blob = Blob(announce, parts)
        self._keep_base(blob)
        return blob


def _sane(announce: Announce) -> bool:
    return (
        0 <= announce.version <= MAX_VERSION
        and 0 < announce.size <= blobs.MAX_BYTES
        and 0 < announce.chunk <= blobs.MOST_CHUNK_BYTES
        and len(announce.hashes) == 8 * count(announce)
    )
