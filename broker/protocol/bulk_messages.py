"""The messages that carry others: large ones in pieces, with marks that tell how far those have
come (the two ends are sender.py and reassembly.py in transport/bulk), and bundles (bundles.py)."""

from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

from headrace.broker.protocol.fields import MAX_BUFFER_BYTES, MAX_BUFFERS, Count, Digest, Sizes

# Bytes of each frame of a bundled message.
FrameSizes: TypeAlias = Annotated[
    tuple[Annotated[int, Meta(ge=0, le=MAX_BUFFER_BYTES)], ...], Meta(max_length=MAX_BUFFERS + 2)
]


class Message(Struct, frozen=True, array_like=True):
    """Serves as base of the closed union in messages.py; fields travel by position. What a later
    protocol adds at their end is ignored."""


class Open(Message, frozen=True):
    """Opens, either way, a message too large for the line: its buffers come in pieces. Buffers: its
    frames 0 and 1."""

    digest: Digest  # of its buffers; the same again goes on where its pieces ended
    sizes: Sizes  # bytes of each of its buffers


class Piece(Message, frozen=True):
    """Carries, either way, the joined buffers of what was opened last, from byte `at` on."""

    at: Count


class Mark(Message, frozen=True):
    """Asks, either way, behind bulk: answer when you have read this far."""

    number: Count  # random: only a peer that has read it can repeat it


class Reached(Message, frozen=True):
    """Answers a Mark."""

    number: Count
    clock_us: Count  # of the peer that answers; it tells how long the answer is under way
    digest: Digest  # of what was opened last; 0 = nothing was
    have: Count  # bytes of it that are here, from the first on; all = no more is wanted


class Bundle(Message, frozen=True):
    """Carries, between a node and the broker, messages of or for its samplers: (member, sizes of
    the frames) each; or small unrolls to a learner, member 0. Buffer 0: all frames, joined; or the
    buffers are the frames of one message, which has no sizes then."""

    parts: tuple[tuple[Count, FrameSizes], ...]
