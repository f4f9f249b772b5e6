"""What a HELLO carries beside its header: too long for one, and decoded once per session."""

import msgpack
import msgspec
from msgspec import Struct

from broker.wire import Buffer, Malformed


class Introduction(Struct, frozen=True):
    """What a HELLO carries beside its header; empty for whom it does not concern."""

    shared: dict[str, object] | None = None  # learner: the sections all must agree on
    spaces: str = ""  # in words, for the refusal of somebody else's
    unroll_bytes: int = 0  # learner: size of one unroll by these spaces
    # actor: (stream, floor, next, started, unacked half-open ranges)
    streams: tuple[tuple[int, int, int, int, tuple[tuple[int, int], ...]], ...] = ()
    # learner: (actor inc, stream, trained half-open ranges), and (tag, inc, stream, seq) held
    trained: tuple[tuple[int, int, tuple[tuple[int, int], ...]], ...] = ()
    held: tuple[tuple[int, int, int, int], ...] = ()
    want: int = 0  # learner: unrolls it can take at once


def encode(said: Introduction) -> bytes:
    return msgspec.msgpack.encode(said)


def decode(body: Buffer) -> Introduction:
    try:
        return msgspec.msgpack.decode(body, type=Introduction)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise Malformed("introduction") from error


def pack(plain: object) -> bytes:
    """Any plain data: the run in WELCOME, the numbers in STATUS."""
    packed: bytes = msgpack.packb(plain, use_bin_type=True)
    return packed


def unpack(body: Buffer) -> object:
    try:
        return msgpack.unpackb(body, strict_map_key=False)
    except (ValueError, msgpack.UnpackException) as error:
        raise Malformed("body") from error
