"""What a HELLO carries beside its header: too long for one, and decoded once per session."""

from itertools import pairwise
from typing import Annotated, TypeAlias

import msgpack
import msgspec
from msgspec import Meta, Struct

from broker.wire import Buffer, Count, Malformed

Tag: TypeAlias = Annotated[int, Meta(ge=0)]
Spans: TypeAlias = tuple[tuple[Count, Count], ...]


class Introduction(Struct, frozen=True):
    """What a HELLO carries beside its header; empty for whom it does not concern."""

    shared: dict[str, object] | None = None  # learner: the sections all must agree on
    spaces: str = ""  # in words, for the refusal of somebody else's
    unroll_bytes: Count = 0  # learner: size of one unroll by these spaces
    # actor: (stream, floor, next, started, unacked half-open ranges)
    streams: tuple[tuple[Count, Count, Count, Count, Spans], ...] = ()
    # learner: (actor inc, stream, trained half-open ranges), and (tag, inc, stream, seq) held
    trained: tuple[tuple[int, Count, Spans], ...] = ()
    held: tuple[tuple[Tag, int, Count, Count], ...] = ()
    want: Count = 0  # learner: unrolls it can take at once


def encode(said: Introduction) -> bytes:
    return msgspec.msgpack.encode(said)


def decode(body: Buffer) -> Introduction:
    try:
        said = msgspec.msgpack.decode(body, type=Introduction)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise Malformed("introduction") from error
    for _, floor, following, started, unacked in said.streams:
        # One unroll at a time runs in a stream. More would let one peer claim the credit of all.
        if not floor <= following <= started <= following + 1:
            raise Malformed("stream")
        if not _ascending(floor, unacked, following):
            raise Malformed("unacknowledged ranges")
    return said


def _ascending(floor: int, spans: Spans, ceiling: int) -> bool:
    """Ranges in order, apart, and inside."""
    edges = [floor, *(edge for span in spans for edge in span), ceiling]
    return all(low <= high for low, high in pairwise(edges))


def pack(plain: object) -> bytes:
    """Any plain data: the run in WELCOME, the numbers in STATUS."""
    packed: bytes = msgpack.packb(plain, use_bin_type=True)
    return packed


def unpack(body: Buffer) -> object:
    try:
        return msgpack.unpackb(body, strict_map_key=False)
    except (ValueError, msgpack.UnpackException) as error:
        raise Malformed("body") from error
