"""The types that fields of messages may have; a message with a value out of bounds is malformed."""

from collections.abc import Sequence
from enum import IntEnum
from typing import Annotated, Final, TypeAlias, TypeVar

from msgspec import Meta

# Entries in one list of a control message; more travel in further messages: headers stay small.
MAX_ENTRIES: Final = 64
# Frames of a message behind the first two.
MAX_BUFFERS: Final = 32
MAX_BUFFER_BYTES: Final = 64 << 20
# Episodes reported with one unroll; a sampler reports the others with the next ones.
MAX_EPISODES: Final = 128
# Two billion versions a year for thirty years; times the largest batch it is still below 2**53.
MAX_VERSION: Final = 1 << 36

Role: TypeAlias = Annotated[str, Meta(max_length=32)]
# A DELIVER names the sampler beside the fields of its unroll, and all of that must fit one header.
MOST_NAME: Final = 200
Name: TypeAlias = Annotated[str, Meta(max_length=MOST_NAME)]
# Text of an error. The bound is in bytes, so that it fits a header in any alphabet.
MOST_TEXT_BYTES: Final = 3000
Text: TypeAlias = Annotated[str, Meta(max_length=MOST_TEXT_BYTES)]
# No count of ours reaches 2**53; a larger one could only overflow a sum.
Count: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 53)]
# xxh3-64.
Digest: TypeAlias = Annotated[int, Meta(ge=0)]
# Of the buffers of one message.
Sizes: TypeAlias = Annotated[
    tuple[Annotated[int, Meta(ge=0, le=MAX_BUFFER_BYTES)], ...], Meta(max_length=MAX_BUFFERS)
]
# Of weights; -1 = none yet.
Version: TypeAlias = Annotated[int, Meta(ge=-1, le=MAX_VERSION)]
# Of an unroll: no sampler acts without weights.
ActedWith: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_VERSION)]
# 63 random bits per process start.
Inc: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Rank: TypeAlias = Annotated[int, Meta(ge=-(1 << 31), le=1 << 31)]
# (stream, first seq, seq after the last): half-open, as Python counts.
Range: TypeAlias = tuple[int, int, int]
Counts: TypeAlias = Annotated[tuple[Count, ...], Meta(max_length=MAX_ENTRIES)]
Ranges: TypeAlias = Annotated[tuple[Range, ...], Meta(max_length=MAX_ENTRIES)]
# Of an unroll.
Column: TypeAlias = Annotated[int, Meta(ge=0, lt=1 << 16)]
# (column, return, length) each.
Episodes: TypeAlias = Annotated[
    tuple[tuple[Column, float, Count], ...], Meta(max_length=MAX_EPISODES)
]


class Outcome(IntEnum):
    """Lists how an unroll can end: each ends in exactly one way, and its sampler is told."""

    TRAINED = 0  # an optimiser step used it
    STALE = 1  # waited for more than max_lag_hard versions
    SHED = 2  # the broker had no room and said so
    DUPLICATE = 3  # this copy; the unroll itself has another outcome
    REJECTED = 4  # the learner could not use it: shape, digest, numbers
    POISON = 5  # given to a learner too often without an answer
    ABANDONED = 6  # the sampler left before it was acknowledged


class Refusal(IntEnum):
    """Lists why a HELLO is refused; the text says what differs and what to do."""

    RUN = 0
    SPACES = 1
    PROTOCOL = 2
    RANK = 3
    IDENTITY = 4
    UNROLLS = 5  # too many of its unrolls could not be used
    TAKEN = 6  # another learner trains this run, or took it over
    WAIT = 7  # not yet: another learner may live; say HELLO again
    FORGETS = 8  # a learner with new weights, where others are trained


_Entry = TypeVar("_Entry")


def parts(entries: Sequence[_Entry]) -> list[tuple[_Entry, ...]]:
    """Splits a list into as many entries as fit one header each."""
    return [tuple(entries[at : at + MAX_ENTRIES]) for at in range(0, len(entries), MAX_ENTRIES)]


def ranges(numbers: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Returns ascending numbers as half-open ranges: 1 2 3 7 -> (1, 4) (7, 8)."""
    out: list[tuple[int, int]] = []
    for number in numbers:
        if out and out[-1][1] == number:
            out[-1] = (out[-1][0], number + 1)
        else:
            out.append((number, number + 1))
    return tuple(out)
