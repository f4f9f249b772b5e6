"""Bundles hold any messages in order, fit one header, and refuse sizes that cannot be."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.protocol import bundles
from headrace.broker.protocol.bundles import bytes_of, kind_of, pack, split
from headrace.broker.protocol.messages import (
    MAX_BUFFERS,
    MAX_HEADER,
    Bundle,
    Chunk,
    Malformed,
    Mark,
    Payload,
    Ping,
    decode,
    encode,
)

LARGE = bundles._LARGE


def opened(packed: list[Payload]) -> tuple[Bundle, list[bytes]]:
    """Returns what the other end reads."""
    message, buffers = decode([bytes_of(frame) for frame in packed])
    assert isinstance(message, Bundle)
    assert len(bytes_of(packed[1])) <= MAX_HEADER
    return message, [bytes(buffer) for buffer in buffers]


messages_of_any_size = st.lists(
    st.tuples(
        st.integers(0, 2**40),
        st.lists(st.integers(0, LARGE // 2) | st.integers(0, 40), max_size=MAX_BUFFERS + 2),
    ),
    max_size=120,
)


@settings(max_examples=60, deadline=None)
@given(messages_of_any_size)
def test_what_goes_in_comes_out(sizes: list[tuple[int, list[int]]]) -> None:
    dice = random.Random(1)
    # A message of no frames is none: encode makes two at least.
    waiting = [
        (number, [dice.randbytes(16), b"h", *(dice.randbytes(size) for size in own[:-2])])
        for number, own in sizes
    ]
    found = [
        (number, [bytes(frame) for frame in frames])
        for packed in pack(waiting)
        for number, frames in split(*opened(packed))
    ]
    assert found == waiting


def test_many_small_ones_are_one_message() -> None:
    beats = [(number, encode(Mark(number))) for number in range(64)]
    (packed,) = pack(beats)
    assert len(packed) == 3, "one buffer, whatever is in it"


def test_a_large_one_travels_alone_and_uncopied() -> None:
    body = bytes(LARGE)
    small = (1, encode(Mark(1)))
    first, alone, last = pack([small, (7, encode(Chunk(3, 0), body)), small])
    assert alone[-1] is body
    (number, frames) = next(iter(split(*opened(alone))))
    assert (number, decode(frames)[0]) == (7, Chunk(3, 0))
    assert [number for number, _ in (*split(*opened(first)), *split(*opened(last)))] == [1, 1]


@pytest.mark.parametrize(
    "sizes", [(3, 4), (3, 6), (3,), (2**26, 2**26)], ids=["short", "long", "one", "huge"]
)
def test_sizes_that_do_not_fit_are_malformed(sizes: tuple[int, ...]) -> None:
    with pytest.raises(Malformed):
        list(split(Bundle(((1, sizes),)), [b"12345678"]))
    with pytest.raises(Malformed):
        list(split(Bundle(((1, (3,)), (2, (5,)))), [b"123", b"45678"]))


def test_the_kind_is_read_without_a_look_at_the_rest() -> None:
    assert kind_of(encode(Ping((), {}))) is Ping
    assert kind_of([b"x", b"y"]) is None
    assert kind_of([b"HR\x03\xff" + bytes(12), b"y"]) is None
    assert kind_of([]) is None
