"""A recording of all that a learner was given, in order, from which its training can be replayed.

    each entry   4 bytes length | 8 bytes xxh3-64 | msgpack
    Opened, Accepted .. Accepted Full, Rejected .., Trained or Refilled .., Closed at a clean end

Without Closed the recording is incomplete: the process was killed, or the disk was full. Its part
can still be used. The receiver thread writes; only one file buffer waits in memory.
"""

import contextlib
import logging
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec
import torch
import xxhash
import zmq
from msgspec import Struct

from headrace.broker.errors import UserError
from headrace.broker.peers.objections import Objection
from headrace.broker.protocol.messages import Deliver, Episodes, Payload
from headrace.learner.batches.batch import Batch
from headrace.learner.weights import Body

log = logging.getLogger(__name__)

SCHEMA = 2
_PREFIX = struct.Struct("<IQ")
_BUFFER_BYTES = 1 << 20


class RecordError(UserError, ValueError):
    """Says in one line why a recording cannot be used."""


class Opened(Struct, frozen=True, array_like=True, tag=0):
    """Begins the recording: its first entry."""

    schema: int
    rank: int
    world: int
    threads: int  # torch's: the order of a sum may depend on them
    run: str  # the effective run, as TOML
    spaces: str  # digest


class Accepted(Struct, frozen=True, array_like=True, tag=1):
    """Records an unroll placed into the batch being filled: what matters of its DELIVER."""

    inc: int
    stream: int
    seq: int
    version_min: int
    version_max: int
    steps: int
    digest: int
    ended: int
    episodes: Episodes
    buffers: list[memoryview]


class Full(Struct, frozen=True, array_like=True, tag=2):
    """Records that this batch was handed to the train loop."""

    unrolls: int


class Trained(Struct, frozen=True, array_like=True, tag=3):
    """Records that the train loop trained its oldest batch; `version` came out of it."""

    version: int


class Rejected(Struct, frozen=True, array_like=True, tag=4):
    """Records that the train loop could not use these unrolls of the oldest batch it holds."""

    places: tuple[int, ...]
    reason: str


class Closed(Struct, frozen=True, array_like=True, tag=5):
    """Ends the recording: its last entry."""


class Refilled(Struct, frozen=True, array_like=True, tag=6):
    """Records that the train loop gave the oldest batch it holds back without a step: what is left
    of it is filled up first, and what was being filled comes after."""


Entry: TypeAlias = Opened | Accepted | Full | Trained | Rejected | Refilled | Closed


def path_of(run_dir: Path, rank: int) -> Path:
    return run_dir / "record" / f"rank{rank}.log"


class Recorder:
    """Writes one rank's recording. Never raises: a run goes on without it."""

    def __init__(self, run_dir: Path, *, rank: int, world: int, run: str, spaces: str) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._path = path_of(run_dir, rank)
        self._whole = True  # nothing is missing yet, and the file is open
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("wb", buffering=_BUFFER_BYTES)
        except OSError as error:
            self._whole = False
            log.error("this run is not recorded: %s", error)
        self._write(Opened(SCHEMA, rank, world, torch.get_num_threads(), run, spaces))

    def accepted(self, message: Deliver, buffers: Sequence[Payload]) -> None:
        views = [b.buffer if isinstance(b, zmq.Frame) else memoryview(b) for b in buffers]
        self._write(
            Accepted(
                message.inc,
                message.stream,
                message.seq,
                message.version_min,
                message.version_max,
                message.steps,
                message.digest,
                message.ended,
                message.episodes,
                [*views],
            )
        )

    def full(self, unrolls: int) -> None:
        self._write(Full(unrolls))

    def trained(self, version: int) -> None:
        self._write(Trained(version))

    def rejected(self, places: tuple[int, ...], reason: str) -> None:
        self._write(Rejected(places, reason))

    def refilled(self) -> None:
        self._write(Refilled())

    def flush(self) -> None:
        """Flushes to the file: a checkpoint is being written, and what led to it must be there."""
        if self._whole:
            try:
                self._file.flush()
            except OSError as error:
                self._give_up(error)

    def close(self) -> None:
        self._write(Closed())
        if self._whole:
            self._whole = False
            try:
                self._file.close()
            except OSError as error:
                self._give_up(error)

    def _write(self, entry: Entry) -> None:
        if not self._whole:
            return
        body = self._encoder.encode(entry)
        try:
            self._file.write(_PREFIX.pack(len(body), xxhash.xxh3_64_intdigest(body)))
            self._file.write(body)
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self._whole = False
        log.error("the recording %s is incomplete from here on: %s", self._path, error)
        with contextlib.suppress(OSError):
            self._file.close()  # what its buffer holds has no place either


def entries(path: Path) -> Iterator[Entry]:
    """Yields all valid entries; ends before one that was cut short or is not as written."""
    decoder = msgspec.msgpack.Decoder(Entry)
    with path.open("rb", buffering=_BUFFER_BYTES) as file:
        while len(prefix := file.read(_PREFIX.size)) == _PREFIX.size:
            length, digest = _PREFIX.unpack(prefix)
            if length > path.stat().st_size:
                return
            body = file.read(length)
            if len(body) != length or xxhash.xxh3_64_intdigest(body) != digest:
                return
            try:
                yield decoder.decode(body)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                return


def opening(path: Path) -> Opened:
    """Reads the first entry; raises RecordError where this program cannot read the recording."""
    try:
        first = next(entries(path), None)
    except OSError as error:
        raise RecordError(f"there is no recording: {error}; train with --record") from error
    if not isinstance(first, Opened):
        raise RecordError(f"{path} is no recording")
    if first.schema != SCHEMA:
        raise RecordError(f"{path} has schema {first.schema}, this program reads {SCHEMA}")
    return first


class RecordedSource:
    """Stands in for the UnrollReceiver of a train loop, and gives it the batches of a recording."""

    def __init__(self, path: Path, batch: Batch) -> None:
        # A batch that the train loop never used is not given out.
        self._left = sum(isinstance(entry, Trained | Refilled) for entry in entries(path))
        self._entries = entries(path)
        self._batch = batch
        self._filling: list[Accepted] = []
        self._waiting: list[list[Accepted]] = []  # begun, filled after that one; the next one last
        self._given: deque[list[Accepted]] = deque()  # to the train loop, as recorded
        self.ended = False  # there are no more batches
        self.closed = False  # the recording has its last entry: it is complete

    def next(self, timeout_s: float) -> Batch | None:  # noqa: ARG002 - nothing is waited for
        """Returns the next batch; None = there are no more, now or later."""
        self._batch.clear()
        for entry in self._entries:
            match entry:
                case Accepted() if self._left:
                    self._filling.append(entry)
                case Full() if self._left:
                    self._full(entry.unrolls)
                    self._left -= 1
                    return self._batch
                case Rejected() if self._given:
                    oldest = self._given[0]
                    oldest[:] = [one for at, one in enumerate(oldest) if at not in entry.places]
                case Trained() if self._given:
                    self._given.popleft()
                case Refilled() if self._given:
                    self._waiting.append(self._filling)
                    self._filling = self._given.popleft()
                case Closed():
                    self.closed = True
        self.ended = True
        return None

    def _full(self, unrolls: int) -> None:
        """Hands the batch over that was being filled."""
        if not unrolls == len(self._filling) == self._batch.unrolls:
            raise RecordError(
                f"a batch of {unrolls} unrolls was recorded, and"
                f" {len(self._filling)} of {self._batch.unrolls} are here"
            )
        for entry in self._filling:
            self._place(entry)
        self._given.append(self._filling)
        self._filling = self._waiting.pop() if self._waiting else []

    def _place(self, entry: Accepted) -> None:
        message = Deliver(
            tag=0,
            attempt=1,
            actor="",
            inc=entry.inc,
            stream=entry.stream,
            seq=entry.seq,
            floor=0,
            version_min=entry.version_min,
            version_max=entry.version_max,
            steps=entry.steps,
            digest=entry.digest,
            ended=entry.ended,
            episodes=entry.episodes,
        )
        objection = self._batch.place(message, entry.buffers)
        if objection is not None:
            raise RecordError(f"an unroll of the recording is refused here: {objection.words}")

    # What an UnrollReceiver tells the broker; here there is none.

    def trained(self, batch: Batch, *, version: int) -> None:
        """Does nothing: the next call of `next` uses the batch again."""

    def reject(self, batch: Batch, places: Sequence[int], _objection: Objection) -> None:
        """Takes these unrolls out of the batch."""
        batch.drop(places)

    def refill(self, batch: Batch) -> None:
        """Does nothing: the recording says what filled it up."""

    def publish(self, version: int, body: Body) -> None:
        """Does nothing."""

    def stats(self, stats: dict[str, float]) -> None:
        """Does nothing."""

    def windows(self) -> Sequence[tuple[int, int, Sequence[Sequence[int]]]]:
        """Returns no windows."""
        return ()
