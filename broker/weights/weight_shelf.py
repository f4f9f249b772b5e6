"""Weights in shared memory: one process of a machine fetches them, all others read them there.

    bytes 0..    header: magic, room of a slot, which slot is current, retired, last move
    bytes 64..   slot 0: sequence, version, size, digest, layout       bytes 256..  slot 1: the same
    bytes 4096.. the two bodies, each behind the hashes of its chunks

The writer fills the slot that is not current and then makes it current. A slot is a seqlock: its
sequence is odd while anything of it is written, and a reader takes only what it read between two
looks at the same even one. It also checks the digest of the body, so half of one version and half
of another is never handed out, whatever the processor reorders.

Both copy only chunks that they have otherwise: of a population few change in each version.

The writer holds a lock on its file. The kernel releases it when the writer dies, however it died,
so readers know at once that the shelf has no writer any more.
"""

import contextlib
import fcntl
import logging
import mmap
import os
import struct
import time
from pathlib import Path
from typing import Final, NamedTuple

from msgspec.structs import replace

from headrace.broker.protocol.messages import Announce
from headrace.broker.weights.blobs import MAX_BYTES, Blob, count
from headrace.broker.weights.common_chunks import (
    changed_pieces,
    digest_of,
    same_chunks,
    worth_keeping,
)

log = logging.getLogger(__name__)

_MAGIC: Final = b"HRshelf2"
_HEADER: Final = struct.Struct("<8sQIIQ")
_CURRENT_AT: Final = 16
_RETIRED_AT: Final = 20
_MOVED_AT: Final = 24
_SLOT: Final = struct.Struct("<QqQQ32s64s")
_SEQUENCE: Final = struct.Struct("<Q")
_SLOT_AT: Final = (64, 256)
_BODY_AT: Final = 4096
_LEAST_CHUNK: Final = 8192  # room for hashes is reserved as if chunks were so small


class ShelfError(OSError):
    """Says that shared memory has no room, and what to change."""


class WeightShelf:
    """Writes the shelf. Its file is removed by `close`; readers that have it open keep the
    content."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.version = -1  # of the current weights; -1 = none yet
        self._map: mmap.mmap | None = None
        self._lock = -1  # descriptor of the file, locked while we are here
        self._room = 0  # bytes of one slot
        self._laid: list[Announce | None] = [None, None]  # what lies in each slot; None = unknown

    def reserve(self, size: int, hashes: int = 0) -> None:
        """Makes room for weights of this size, so that they are not fetched in vain. A model larger
        than before gets a new file."""
        if self._map is None or hashes + size > self._room:
            self._open(max(hashes, size // _LEAST_CHUNK * 8 + 8) + size)

    def show_progress(self) -> None:
        """Shows readers that what they wait for is on its way."""
        if self._map is not None:
            struct.pack_into("<Q", self._map, _MOVED_AT, time.monotonic_ns())

    def put(self, blob: Blob) -> None:
        """Writes the weights, and makes them current."""
        said = blob.announce
        self.reserve(said.size, len(said.hashes))
        shared = self._map
        assert shared is not None
        slot = 1 - _current(shared)
        sequence = _sequence(shared, slot) | 1
        _SEQUENCE.pack_into(shared, _SLOT_AT[slot], sequence)
        facts = said.version, said.size, said.chunk, said.digest.encode(), said.layout.encode()
        _SLOT.pack_into(shared, _SLOT_AT[slot], sequence, *facts)
        at = _BODY_AT + slot * self._room
        before, self._laid[slot] = self._laid[slot], None
        for offset, part in [(-len(said.hashes), said.hashes), *changed_pieces(blob, before)]:
            begin = at + len(said.hashes) + offset
            shared[begin : begin + len(part)] = part
        self._laid[slot] = said
        _SEQUENCE.pack_into(shared, _SLOT_AT[slot], sequence + 1)
        struct.pack_into("<I", shared, _CURRENT_AT, slot)
        self.version = said.version

    def close(self) -> None:
        self._retire()
        self.version = -1
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)

    def _open(self, room: int) -> None:
        self._retire()
        fresh = self.path.with_name(f"{self.path.name}.new")
        size = _BODY_AT + 2 * room
        try:
            self._lock = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            # Not a hole: without room a later write would end the process by SIGBUS.
            os.posix_fallocate(self._lock, 0, size)
            self._map = mmap.mmap(self._lock, size)
        except OSError as error:
            self._unlock()
            with contextlib.suppress(OSError):
                fresh.unlink(missing_ok=True)
            raise ShelfError(
                f"no room for {size / 2**20:.0f} MiB of weights in {self.path.parent}:"
                f" {error.strerror}; make shared memory larger (mount -o remount,size=...)"
            ) from error
        self._room, self._laid = room, [None, None]
        _HEADER.pack_into(self._map, 0, _MAGIC, room, 0, 0, time.monotonic_ns())
        _retire_killed(self.path)
        fresh.replace(self.path)

    def _retire(self) -> None:
        if self._map is not None:
            struct.pack_into("<I", self._map, _RETIRED_AT, 1)
            self._map.close()
            self._map, self._room = None, 0
        self._unlock()

    def _unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _retire_killed(path: Path) -> None:
    """Marks the file of a killed writer as retired: the writer could not tell its readers."""
    with contextlib.suppress(OSError), path.open("r+b") as left:
        if left.read(len(_MAGIC)) == _MAGIC:
            left.seek(_RETIRED_AT)
            left.write(b"\1\0\0\0")


class Snapshot(NamedTuple):
    """Holds the header of the shared segment, as one read saw it; stale at once."""

    version: int  # -1 = none yet
    digest: str
    moved_s: float  # time.monotonic() of the writer's last move
    attended: bool  # its writer is alive


class SegmentReader:
    """Reads the shelf; opens it when there is one, and again when it was replaced."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.torn = 0  # bodies not taken because the writer was faster, or a digest was wrong
        self._map: mmap.mmap | None = None
        self._lock = -1  # descriptor of the file
        self._taken: Announce | None = None  # the newest that was taken
        self._base: Blob | None = None  # that one, if the next may have much in common with it

    def look(self) -> Snapshot | None:
        """Reads the header; None = there is no shelf."""
        shared = self._opened()
        if shared is None:
            return None
        slot = _current(shared)
        sequence, said = _described(shared, slot)
        moved_s = _HEADER.unpack_from(shared, 0)[4] / 1e9
        written = bool(sequence) and not sequence % 2 and sequence == _sequence(shared, slot)
        return Snapshot(said.version if written else -1, said.digest, moved_s, self._attended())

    def take(self, newer_than: int) -> Blob | None:
        """Returns the current weights if they are newer; None = not, or not now: look again
        later."""
        shared = self._opened()
        if shared is None:
            return None
        slot = _current(shared)
        sequence, said = _described(shared, slot)
        if not sequence or said.version <= newer_than:
            return None
        blob = self._copied(shared, slot, said) if not sequence % 2 else None
        if blob is None or sequence != _sequence(shared, slot):
            self.torn += 1
            self._base = None
            return None
        self._base = blob if worth_keeping(blob.announce, self._taken) else None
        self._taken = blob.announce
        return blob

    def _copied(self, shared: mmap.mmap, slot: int, said: Announce) -> Blob | None:
        """Returns what lies there, with the chunks that are known as they are; None = it is not
        what its description says."""
        room = _HEADER.unpack_from(shared, 0)[1]
        if not (0 < said.size <= MAX_BYTES and said.chunk > 0):
            return None
        at = _BODY_AT + slot * room
        begin, end = at + 8 * count(said), at + 8 * count(said) + said.size
        if end > at + room:
            return None
        said = replace(said, hashes=shared[at:begin])
        base = self._base
        known = {} if base is None else {i: base.parts[i] for i in same_chunks(said, base.announce)}
        parts = tuple(
            known[i] if i in known else shared[lo : min(lo + said.chunk, end)]
            for i, lo in enumerate(range(begin, end, said.chunk))
        )
        return Blob(said, parts) if digest_of(parts) == said.digest else None

    def close(self) -> None:
        if self._map is not None:
            self._map.close()
            os.close(self._lock)
            self._map, self._lock = None, -1

    def _attended(self) -> bool:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True  # the writer has it
        fcntl.flock(self._lock, fcntl.LOCK_UN)
        return False

    def _opened(self) -> mmap.mmap | None:
        if self._map is not None and _HEADER.unpack_from(self._map, 0)[3]:
            self.close()
        if self._map is None:
            try:
                self._lock = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return None
            self._map = _mapped(self._lock)
            if self._map is None:
                os.close(self._lock)
                self._lock = -1
        return self._map


def _mapped(fd: int) -> mmap.mmap | None:
    """Maps the file; None = it is not a shelf, or a retired one."""
    if os.fstat(fd).st_size < _BODY_AT:
        return None
    shared = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
    magic, room, current, retired, _ = _HEADER.unpack_from(shared, 0)
    whole = magic == _MAGIC and len(shared) == _BODY_AT + 2 * room and current < 2 and not retired
    if not whole:
        shared.close()
        return None
    return shared


def _current(shared: mmap.mmap) -> int:
    return 1 if _HEADER.unpack_from(shared, 0)[2] else 0


def _described(shared: mmap.mmap, slot: int) -> tuple[int, Announce]:
    """Returns the sequence of a slot, and what is said to lie there, without its hashes."""
    sequence, *facts, digest, layout = _SLOT.unpack_from(shared, _SLOT_AT[slot])
    version, size, chunk = facts
    layout, digest = (one.rstrip(b"\0").decode(errors="replace") for one in (layout, digest))
    return sequence, Announce(version, layout, digest, size, chunk, b"")


def _sequence(shared: mmap.mmap, slot: int) -> int:
    sequence: int = _SEQUENCE.unpack_from(shared, _SLOT_AT[slot])[0]
    return sequence
