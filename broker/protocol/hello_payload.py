"""The payload of a HELLO: too long for a header, and decoded once per session."""

from itertools import pairwise
from typing import Annotated, TypeAlias

import msgpack
import msgspec
from msgspec import Meta, Struct

from headrace.broker.protocol.fields import Count, Inc
from headrace.broker.protocol.messages import Buffer, Malformed

Tag: TypeAlias = Annotated[int, Meta(ge=0)]
Port: TypeAlias = Annotated[int, Meta(ge=0, le=65535)]
Spans: TypeAlias = tuple[tuple[Count, Count], ...]

# Seqs that one HELLO may name: of one stream, of all, and of all that a learner trained.
_MOST_OF_STREAM = 1 << 16
_MOST_OPEN = 1 << 17
_MOST_TRAINED = 1 << 20
# Depth of tables in a run; only an environment's arguments nest, and only a few levels.
_MOST_DEEP = 16


class HelloPayload(Struct, frozen=True):
    """Holds the payload; a field is empty for a role that does not use it."""

    shared: dict[str, object] | None = None  # learner: the sections all must agree on
    spaces: str = ""  # in words, for the text of a refusal
    unroll_bytes: Count = 0  # learner: size of one unroll by these spaces
    # actor: (stream, floor, next, started, unacked half-open ranges)
    streams: tuple[tuple[Count, Count, Count, Count, Spans], ...] = ()
    # learner: (actor inc, stream, trained half-open ranges), and (tag, inc, stream, seq) held
    trained: tuple[tuple[Inc, Count, Spans], ...] = ()
    held: tuple[tuple[Tag, Inc, Count, Count], ...] = ()
    want: Count = 0  # learner: unrolls it can take at once
    brokers: Count = 1  # learner: how many its run has
    port: Port = 0  # where its metrics can be had, at the address it connects from; 0 = nowhere


def encode(said: HelloPayload) -> bytes:
    return msgspec.msgpack.encode(said)


def decode(body: Buffer) -> HelloPayload:
    try:
        said = msgspec.msgpack.decode(body, type=HelloPayload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed("introduction") from error
    if said.shared is not None and not _sections(said.shared):
        raise Malformed("shared run")
    for _, floor, following, started, unacked in said.streams:
        # One unroll at a time runs in a stream. More would let one peer claim the credit of all.
        if not floor <= following <= started <= following + 1:
            raise Malformed("stream")
        if not _ascending(floor, unacked, following):
            raise Malformed("unacknowledged ranges")
    windows = [following - floor for _, floor, following, _, _ in said.streams]
    if max(windows, default=0) > _MOST_OF_STREAM or sum(windows) > _MOST_OPEN:
        raise Malformed("too many open unrolls")
    if sum(max(0, hi - lo) for *_, spans in said.trained for lo, hi in spans) > _MOST_TRAINED:
        raise Malformed("too many trained unrolls")
    return said


def _sections(shared: dict[str, object]) -> bool:
    """Checks for tables of keys, nested no deeper than any run: comparing and printing them
    recurses."""
    level: list[object] = list(shared.values())
    if not all(isinstance(table, dict) for table in level):
        return False
    for _ in range(_MOST_DEEP):
        level = [
            part
            for held in level
            if isinstance(held, dict | list)
            for part in (held.values() if isinstance(held, dict) else held)
        ]
        if not level:
            return True
    return False


def _ascending(floor: int, spans: Spans, ceiling: int) -> bool:
    """Tells whether the ranges are in order, apart, and inside the bounds."""
    edges = [floor, *(edge for span in spans for edge in span), ceiling]
    return all(low <= high for low, high in pairwise(edges))


def pack(plain: object) -> bytes:
    """Encodes any plain data: the run in WELCOME, the numbers in STATUS."""
    packed: bytes = msgpack.packb(plain, use_bin_type=True)
    return packed


def unpack(body: Buffer) -> object:
    try:
        return msgpack.unpackb(body, strict_map_key=False)
    except (ValueError, TypeError, msgpack.UnpackException) as error:  # TypeError: a list as a key
        raise Malformed("body") from error
