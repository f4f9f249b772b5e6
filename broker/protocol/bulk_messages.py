"""The messages that carry others: what is too large for a line comes in pieces, and marks tell how
far it has come. bulk.py and pieces.py are the two ends.
"""

from msgspec import Struct

from headrace.broker.protocol.fields import Count, Digest, Sizes


class Message(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of the closed union in wire.py; fields travel by position."""


class Open(Message, frozen=True):
    """Either way: a message too large for the line comes in pieces. Buffers: its frames 0 and 1."""

    digest: Digest  # of its buffers; the same again goes on where its pieces ended
    sizes: Sizes  # bytes of each of its buffers


class Piece(Message, frozen=True):
    """Either way: the buffers of what was opened last, joined, from byte `at` on."""

    at: Count


class Mark(Message, frozen=True):
    """Either way, behind bulk: say that you have read so far."""

    number: Count  # drawn by lot: only who has read it can say it


class Reached(Message, frozen=True):
    """The answer to Mark."""

    number: Count
    clock_us: Count  # of who answers; it tells how long the answer is under way
    digest: Digest  # of what was opened last; 0 = nothing was
    have: Count  # bytes of it that are here, from the first on; all = no more is wanted
