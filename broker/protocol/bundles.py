"""Puts messages of and for the samplers of a node, and unrolls for a learner, into bundles, and
takes them out again. Pure.

    (member, frames) (member, frames) ..  --pack-->  Bundle Bundle ..  --split-->  the same again

A member is a number that the node gave to a sampler's connection; OWN is the connection's own.
Small messages are joined, so that many of them cost the sockets as much as one. A large one travels
alone and uncopied.
"""

from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias, TypeVar

from headrace.broker.protocol.messages import (
    MAX_BUFFERS,
    MAX_HEADER,
    PREFIX_BYTES,
    TYPES,
    Buffer,
    Bundle,
    Malformed,
    Message,
    Payload,
    encode,
)

OWN: Final = 0  # the member for which a learner's unrolls are
# From here on a copy costs more than a frame of its own.
_LARGE: Final = 65536
# Bytes of a header that a message takes at most, and each of its frames.
_PART_BYTES, _FRAME_BYTES = 12, 5
_MOST_HEADER: Final = MAX_HEADER - 16

Member: TypeAlias = tuple[int, Sequence[Payload]]  # its number, and the frames of a message
Name = TypeVar("Name")  # what a message is known by


def pack(waiting: Sequence[Member]) -> Iterator[list[Payload]]:
    """Yields the frames of bundles that hold all of these messages, in order."""
    for group in groups(waiting):
        member, frames = group[0]
        if len(group) == 1 and _is_large(frames, sum(map(len, frames))):
            yield encode(Bundle(((member, ()),)), *frames)
        else:
            yield join(group)


def groups(
    waiting: Sequence[tuple[Name, Sequence[Payload]]],
) -> Iterator[Sequence[tuple[Name, Sequence[Payload]]]]:
    """Yields the messages that one bundle holds, in order; a large one is alone."""
    joined: list[tuple[Name, Sequence[Payload]]] = []
    header = size = 0
    for name, frames in waiting:
        nbytes = sum(map(len, frames))
        alone = _is_large(frames, nbytes)
        cost = _PART_BYTES + _FRAME_BYTES * len(frames)
        if joined and (alone or header + cost > _MOST_HEADER or size + nbytes > _LARGE):
            yield joined
            joined, header, size = [], 0, 0
        if alone:
            yield [(name, frames)]
        else:
            joined.append((name, frames))
            header, size = header + cost, size + nbytes
    if joined:
        yield joined


def _is_large(frames: Sequence[Payload], nbytes: int) -> bool:
    return nbytes >= _LARGE and len(frames) <= MAX_BUFFERS


def join(members: Sequence[Member]) -> list[Payload]:
    """Returns the frames of the bundle that holds these small messages."""
    parts = tuple((member, tuple(map(len, frames))) for member, frames in members)
    body = b"".join(bytes_of(frame) for _, frames in members for frame in frames)
    return encode(Bundle(parts), body)


def bytes_of(frame: Payload) -> Buffer:
    """Returns what stands in a frame."""
    return frame if isinstance(frame, bytes | bytearray | memoryview) else frame.buffer


def kind_of(frames: Sequence[Payload]) -> type[Message] | None:
    """Returns the type that a message says it has, unchecked; None = it is none of ours."""
    if len(frames) < 2 or len(frames[0]) != PREFIX_BYTES:
        return None
    tag = bytes_of(frames[0])[3]
    return TYPES[tag] if tag < len(TYPES) else None


def is_own(bundle: Bundle) -> bool:
    """Tells whether it is for the connection that it came by, not for samplers behind it."""
    return bool(bundle.parts) and bundle.parts[0][0] == OWN


def split(bundle: Bundle, buffers: Sequence[Buffer]) -> Iterator[tuple[int, Sequence[Buffer]]]:
    """Yields the member and the frames of each message; raises Malformed before the first if they
    do not fit. The frames of joined ones are copies: one that is kept does not keep the others."""
    parts = bundle.parts
    if len(parts) == 1 and not parts[0][1]:
        yield parts[0][0], buffers
        return
    total = sum(sum(sizes) for _, sizes in parts)
    if len(buffers) != 1 or total != len(buffers[0]):
        raise Malformed("sizes in a bundle")
    body, at = memoryview(buffers[0]), 0
    for member, sizes in parts:
        frames = []
        for size in sizes:
            frames.append(bytes(body[at : at + size]))
            at += size
        yield member, frames
