"""The messages about credit, part of the union in messages.py."""

from typing import Annotated

from msgspec import Meta

from headrace.broker.protocol.bulk_messages import Message
from headrace.broker.protocol.fields import MAX_ENTRIES, Count


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
