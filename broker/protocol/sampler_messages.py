"""The messages between the broker and a sampler, part of the union in messages.py."""

from typing import Annotated

from msgspec import Meta

from headrace.broker.protocol.bulk_messages import Message
from headrace.broker.protocol.fields import (
    MAX_ENTRIES,
    ActedWith,
    Count,
    Episodes,
    Inc,
    Outcome,
    Range,
    Ranges,
    Version,
)


class Unroll(Message, frozen=True):
    """Carries a finished unroll, actor -> broker. Buffers: the unroll's fields."""

    inc: Inc
    stream: Count
    seq: Count
    floor: Count  # every seq below is settled for the sampler and need not be remembered
    version_min: ActedWith
    version_max: ActedWith
    steps: Count  # live steps, dead ones left out
    digest: int  # xxh3-64 over the buffers
    ended: Count = 0  # episodes that ended in here
    episodes: Episodes = ()  # (column, return, length), those not told with the ones before too


class Ack(Message, frozen=True):
    """Acknowledges, broker -> actor, ranges with the outcome they share."""

    outcome: Outcome
    ranges: tuple[Range, ...]


class Ping(Message, frozen=True):
    """Lists, actor or evaluator -> broker, every beat, what is not acknowledged."""

    unacked: Ranges
    stats: dict[str, float]
    version: Version = -1  # acting with


class Pong(Message, frozen=True):
    """Names, broker -> actor, unacknowledged ranges that are not here; send them again."""

    broker_inc: int
    version: int
    missing: tuple[Range, ...]


class Limit(Message, frozen=True):
    """Grants credit, broker -> actor: (stream, limit, version): seqs below may start, acting with
    >= version."""

    grants: tuple[tuple[int, int, int], ...]


class Recall(Message, frozen=True):
    """Asks, broker -> actor, for the credit not used yet: (stream, number of the question)."""

    streams: Annotated[tuple[tuple[Count, Count], ...], Meta(max_length=MAX_ENTRIES)]


class Returned(Message, frozen=True):
    """Answers Recall, actor -> broker: (stream, number of the question, started): none above will
    start."""

    streams: Annotated[tuple[tuple[Count, Count, Count], ...], Meta(max_length=MAX_ENTRIES)]
