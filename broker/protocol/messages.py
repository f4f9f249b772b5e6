"""Every message as a typed record; the only place that turns bytes into messages and back.

    frame 0   16 bytes   magic "HR" | protocol u8 | type u8 | buffers u16 | 0 u16 | header bytes u32
                         | xxh32 u32 of the header, seeded with type << 16 | buffers
    frame 1   <= 4 KiB   msgpack array: the fields of the record, in order
    frame 2.. opaque     raw buffers; the broker passes them on and never looks inside

Errors, all WireError: Malformed (the sender is at fault: refuse, count, go on) and OtherProtocol
(the sender is unfit: tell it which protocol we speak).
"""

import struct
from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec
import xxhash
import zmq

from headrace.broker.protocol.bulk_messages import Bundle, Mark, Message, Open, Piece, Reached
from headrace.broker.protocol.fields import (
    MAX_BUFFER_BYTES,
    MAX_BUFFERS,
    MAX_ENTRIES,
    MAX_EPISODES,
    Count,
    Episodes,
    Inc,
    Name,
    Outcome,
    Range,
    Ranges,
    Rank,
    Refusal,
    Role,
    Text,
    Version,
    parts,
    ranges,
)
from headrace.broker.protocol.lease_messages import Deliver, Done, LearnerPing, LearnerPong, Nack
from headrace.broker.protocol.releases import OLDEST, PROTOCOL
from headrace.broker.protocol.sampler_messages import (
    Ack,
    Limit,
    Ping,
    Pong,
    Recall,
    Returned,
    Unroll,
)
from headrace.broker.protocol.weight_messages import (
    Acting,
    Announce,
    Chunk,
    Delta,
    Get,
    GetDelta,
    MembersActing,
    Past,
)

__all__ = [
    "MAX_BUFFERS",
    "MAX_BUFFER_BYTES",
    "MAX_ENTRIES",
    "MAX_EPISODES",
    "Ack",
    "Acting",
    "Announce",
    "Bundle",
    "Chunk",
    "Deliver",
    "Delta",
    "Done",
    "Episodes",
    "Get",
    "GetDelta",
    "LearnerPing",
    "LearnerPong",
    "Limit",
    "Mark",
    "MembersActing",
    "Message",
    "Nack",
    "Open",
    "Outcome",
    "Past",
    "Piece",
    "Ping",
    "Pong",
    "Range",
    "Reached",
    "Recall",
    "Refusal",
    "Returned",
    "Unroll",
    "parts",
    "ranges",
]

MAGIC: Final = b"HR"
MAX_HEADER: Final = 4096

_PREFIX: Final = struct.Struct("!2sBBHHII")
PREFIX_BYTES: Final = _PREFIX.size

Buffer: TypeAlias = bytes | bytearray | memoryview
# What the broker passes on without looking: a buffer, or the frame it came in.
Payload: TypeAlias = Buffer | zmq.Frame


class WireError(ValueError):
    """Says that what arrived is not one of our messages."""


class Malformed(WireError):  # noqa: N818 - reads as what it says
    """Reports wrong bytes: counted under a reason, never answered."""


class OtherProtocol(WireError):  # noqa: N818
    """Reports a peer of another release."""

    def __init__(self, theirs: int) -> None:
        super().__init__(
            f"protocol {theirs} there, protocol {PROTOCOL} here: upgrade the older side"
        )
        self.theirs = theirs


class Hello(Message, frozen=True):
    """Introduces any peer to the broker, first and again after RESYNC. Buffer 0: msgpack
    HelloPayload."""

    role: Role  # actor, learner, watcher or evaluator
    name: Name
    inc: Inc  # random 63 bits per process start
    run: str = ""  # "" = whatever the broker runs
    spaces: str = ""  # digest of the spaces; "" = not known yet
    rank: Rank = 0
    world: Rank = 1
    version: Version = 0  # actor: acting with; learner: trained up to
    group: Inc = 0  # learner: the same for all ranks of one learner
    take_over: bool = False  # learner: replaces another one that lives
    fresh: bool = False  # learner: new weights may replace what the run has trained


class Welcome(Message, frozen=True):
    """Admits a peer, broker -> peer. Buffer 0: msgpack of the shared run."""

    broker_inc: int
    run: str
    beat_s: float
    lease_s: float
    announce: str
    version: int


class Refuse(Message, frozen=True):
    """Sends a peer away, broker -> peer; the text is for a person."""

    code: int
    text: str


class Bye(Message, frozen=True):
    """Ends a session cleanly, either way. final (learner, broker): the run is over, nothing is
    trained."""

    inc: Inc
    final: bool
    text: str
    abandoned: Ranges = ()


class Resync(Message, frozen=True):
    """Asks an unknown peer for HELLO, broker -> peer."""

    broker_inc: int


class Watch(Message, frozen=True):
    """Asks for Status, watcher -> broker."""


class Status(Message, frozen=True):
    """Carries the numbers to show, broker -> watcher. Buffer 0: their msgpack."""


class Trouble(Message, frozen=True):
    """Reports errors in its log, any peer -> broker. Errors of one kind are one, the first of them
    whole."""

    inc: Inc
    text: Text
    count: Count


TYPES: Final[tuple[type[Message], ...]] = (
    Hello,
    Welcome,
    Refuse,
    Unroll,
    Limit,
    Ack,
    Ping,
    Pong,
    Deliver,
    Done,
    Nack,
    LearnerPing,
    LearnerPong,
    Announce,
    Get,
    Chunk,
    Acting,
    Bye,
    Resync,
    Watch,
    Status,
    Trouble,
    Open,
    Piece,
    Mark,
    Reached,
    Recall,
    Returned,
    Bundle,
    GetDelta,
    Delta,
    Past,
    MembersActing,
)
_TAG: Final = {kind: tag for tag, kind in enumerate(TYPES)}
_DECODERS: Final = tuple(msgspec.msgpack.Decoder(kind) for kind in TYPES)
_ENCODER: Final = msgspec.msgpack.Encoder()


def encode(message: Message, *buffers: Payload) -> list[Payload]:
    """Returns the frames of a message."""
    header, tag, count = _ENCODER.encode(message), _TAG[type(message)], len(buffers)
    assert len(header) <= MAX_HEADER, f"{type(message).__name__} header of {len(header)} bytes"
    prefix = _PREFIX.pack(MAGIC, PROTOCOL, tag, count, 0, len(header), _check(header, tag, count))
    return [prefix, header, *buffers]


def kind(frames: Sequence[Payload]) -> type[Message]:
    """Returns the type of a message that `encode` made."""
    prefix = frames[0]
    assert isinstance(prefix, bytes)
    return TYPES[prefix[3]]


def decode(frames: Sequence[Buffer]) -> tuple[Message, Sequence[Buffer]]:
    """Returns the message and its buffers; raises WireError and never anything else."""
    if len(frames) < 2:
        raise Malformed("fewer than two frames")
    prefix, header = frames[0], frames[1]
    if len(prefix) != PREFIX_BYTES:
        raise Malformed("prefix size")
    magic, protocol, tag, buffers, spare, size, check = _PREFIX.unpack(prefix)
    if magic != MAGIC:
        raise Malformed("magic")
    if not OLDEST <= protocol <= PROTOCOL:
        raise OtherProtocol(protocol)
    if tag >= len(TYPES) or spare:
        raise Malformed("type")
    if size != len(header) or size > MAX_HEADER:
        raise Malformed("header size")
    if buffers != len(frames) - 2 or buffers > MAX_BUFFERS:
        raise Malformed("buffer count")
    bodies = frames[2:]
    if bodies and max(map(len, bodies)) > MAX_BUFFER_BYTES:
        raise Malformed("buffer size")
    if _check(header, tag, buffers) != check:
        raise Malformed("header hash")
    try:
        message = _DECODERS[tag].decode(header)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise Malformed("header fields") from error
    return message, bodies


def _check(header: Buffer, tag: int, buffers: int) -> int:
    """Computes the seeded hash: a flipped type or count does not pass for another message."""
    return xxhash.xxh32_intdigest(header, seed=tag << 16 | buffers)
