"""Bytes to messages and back, and everything that is no message."""

import contextlib
import random
import re
import struct
from pathlib import Path

import msgpack
import msgspec
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.protocol import hello_payload, messages, releases
from headrace.broker.protocol.hello_payload import HelloPayload
from headrace.broker.protocol.messages import (
    Buffer,
    Malformed,
    Message,
    OtherProtocol,
    Outcome,
    decode,
    encode,
)

# Every message once, every field filled, long lists included.
RANGES = tuple((n, 10 * n, 10 * n + 3) for n in range(messages.MAX_ENTRIES))
TAGS = tuple((2**62 + 5 * n, 2**62 + 5 * n + 2) for n in range(messages.MAX_ENTRIES))
EPISODES = tuple((2**16 - 1, float(n), 2**53) for n in range(messages.MAX_EPISODES))
BIG = 2**63 - 1
MESSAGES: tuple[Message, ...] = (
    messages.Hello("actor", "é" * 200, BIG, run="r", spaces="s", rank=1, world=2, version=-1),
    messages.Welcome(BIG, "run", 1.0, 10.0, "tcp://x:1", 7),
    messages.Refuse(2, "too old"),
    messages.Unroll(BIG, 3, 2**53, 2**53, 5, 6, 20, 2**64 - 1, 128, EPISODES),
    messages.Limit(tuple((n, 2**53, 2**31) for n in range(messages.MAX_ENTRIES))),
    messages.Ack(Outcome.SHED, RANGES),
    messages.Ping(RANGES, {"steps": 1.5}),
    messages.Pong(BIG, 4, RANGES),
    messages.Deliver(BIG, 3, "é" * 200, BIG, 3, 2**53, 2**53, 5, 6, 20, 2**64 - 1, 128, EPISODES),
    messages.Done(BIG, 9, 80, TAGS),
    messages.Nack(BIG, TAGS, Outcome.REJECTED, "x" * 200),
    messages.LearnerPing(BIG, 9, 80, -1, TAGS, {"loss": -0.5}),
    messages.LearnerPong(BIG, 9, 8),
    messages.Announce(9, "layout", "digest", 400 << 20, 1 << 20, b"h" * 3200),
    messages.Get(9, 0, 8),
    messages.Chunk(9, 7),
    messages.Acting(9, "digest"),
    messages.Bye(BIG, True, "done", RANGES),
    messages.Resync(BIG),
    messages.Watch(),
    messages.Status(),
    messages.Trouble(BIG, "an error", 3),
    messages.Open(2**64 - 1, (messages.MAX_BUFFER_BYTES,) * messages.MAX_BUFFERS),
    messages.Piece(2**53),
    messages.Mark(2**53),
    messages.Reached(2**53, 2**53, 2**64 - 1, 2**53),
    messages.Recall(tuple((1 << 53, 1 << 53) for _ in range(messages.MAX_ENTRIES))),
    messages.Returned(tuple((1 << 53, 1 << 53, 1 << 53) for _ in range(messages.MAX_ENTRIES))),
    messages.Bundle(
        ((2**53, (messages.MAX_BUFFER_BYTES,) * (messages.MAX_BUFFERS + 2)), (1, ())) * 20
    ),
    messages.GetDelta(9, 0, 8, 7),
    messages.Delta(9, 7, 7),
    messages.Past(7, "l" * 32, "d" * 32, 2**53, 2**53, b"h" * 8 * 400),
    messages.MembersActing(7, "d" * 32, (2**53,) * messages.MAX_ENTRIES),
)
# The broker's room without the messages themselves.
ROOM = Path(messages.__file__).parents[1]
SOURCES = "\n".join(
    path.read_text(encoding="utf-8")
    for path in ROOM.rglob("*.py")
    if path.parent != Path(messages.__file__).parent
)


def parts(*frames: Buffer | object) -> list[bytes]:
    return [bytes(frame) for frame in frames if isinstance(frame, bytes | bytearray | memoryview)]


def framed(header: bytes, tag: int, **other: int) -> list[bytes]:
    """Frames with a right prefix, except for what `other` says."""
    buffers = other.get("buffers", 0)
    check = other.get("check", xxhash.xxh32_intdigest(header, seed=tag << 16 | buffers))
    size = other.get("size", len(header))
    protocol, spare = other.get("protocol", releases.PROTOCOL), other.get("spare", 0)
    prefix = struct.pack("!2sBBHHII", b"HR", protocol, tag, buffers, spare, size, check)
    return [prefix, header]


def test_the_list_above_is_complete() -> None:
    assert tuple(type(message) for message in MESSAGES) == messages.TYPES


@pytest.mark.parametrize("kind", messages.TYPES, ids=lambda kind: kind.__name__)
def test_somebody_takes_it(kind: type[Message]) -> None:
    """In a table of handlers, a case or a question for its type: to send it is not enough."""
    name = kind.__name__
    takes = rf"messages\.{name}: \(|case [^\n]*\b{name}\(|isinstance\([\w.]+, [^)]*\b{name}\b"
    assert re.search(takes, SOURCES)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_round_trip_with_the_longest_fields(message: Message) -> None:
    frames = parts(*encode(message, b"one", bytearray(b"two"), memoryview(b"")))
    decoded, buffers = decode([memoryview(frame) for frame in frames])
    assert decoded == message
    assert [bytes(buffer) for buffer in buffers] == [b"one", b"two", b""]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_another_codec_reads_the_same_header(message: Message) -> None:
    _, header = parts(*encode(message))
    fields = msgpack.unpackb(header, use_list=False)
    assert fields == msgspec.structs.astuple(message)
    assert decode(framed(msgpack.packb(fields), messages.TYPES.index(type(message))))[0] == message


@given(
    st.one_of(
        [
            st.from_type(kind)
            for kind in (messages.Limit, messages.Ack, messages.Refuse, messages.Pong)
        ]
    )
)
def test_round_trip_of_whatever_the_types_allow(message: Message) -> None:
    try:
        frames = parts(*encode(message))
    except (AssertionError, OverflowError):
        return  # more than travels: our own mistake, seen at once by who sends
    assert decode(frames)[0] == message


GOOD = parts(*encode(messages.Unroll(1, 2, 3, 0, 4, 5, 6, 7, 1, ((0, 1.0, 2),)), b"abc", b"d"))
HEADER = GOOD[1]
UNROLL = messages.TYPES.index(messages.Unroll)
DELIVER = messages.TYPES.index(messages.Deliver)


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([], "frames"),
        (GOOD[:1], "frames"),
        ([GOOD[0][:-1], HEADER], "prefix"),
        ([GOOD[0] + b"x", HEADER], "prefix"),
        ([b"XX" + GOOD[0][2:], *GOOD[1:]], "magic"),
        (framed(HEADER, len(messages.TYPES)), "type"),
        (framed(HEADER, UNROLL, spare=1), "type"),
        (GOOD[:3], "count"),
        ([*GOOD, b"more"], "count"),
        ([*framed(HEADER, UNROLL, buffers=33), *[b""] * 33], "count"),
        (framed(HEADER, UNROLL, size=len(HEADER) - 1), "header size"),
        (framed(b"\xc4" + b"x" * 4096, UNROLL), "header size"),
        (framed(HEADER, UNROLL, check=1), "hash"),
        (framed(HEADER + b"\0", UNROLL), "fields"),  # bytes behind the message
        (framed(HEADER[:-1], UNROLL), "fields"),
        (framed(msgpack.packb([1, 2, 3]), UNROLL), "fields"),  # too few
        (framed(msgpack.packb([1, 2, "3", 0, 4, 5, 6, 7]), UNROLL), "fields"),
        (framed(msgpack.packb([1, 2, -3, 0, 4, 5, 6, 7]), UNROLL), "fields"),
        (framed(msgpack.packb([1, 2, 2**60, 0, 4, 5, 6, 7]), UNROLL), "fields"),
        (framed(msgpack.packb([1, 2, 3, 0, 4, 5, 6, 7, 0, [[0, 0]] * 129]), UNROLL), "fields"),
        (
            framed(msgpack.packb([99, []]), messages.TYPES.index(messages.Ack)),
            "fields",
        ),  # no such outcome
        (framed(b"\x91\xa2\xff\xfe", messages.TYPES.index(messages.Resync)), "fields"),
        (framed(b"\x94\xa2\xff\xfe\xa0\xa0\0", messages.TYPES.index(messages.Hello)), "fields"),
        (framed(msgpack.packb(["actor", "n" * 201, 1]), 0), "fields"),
        (framed(msgpack.packb([1, 1, "n" * 201, *range(9), []]), DELIVER), "fields"),
        (framed(b"\x91" * 4000 + b"\0", messages.TYPES.index(messages.Ack)), "fields"),
    ],
)
def test_malformed(frames: list[bytes], reason: str) -> None:
    with pytest.raises(Malformed, match=reason):
        decode(frames)


def test_a_buffer_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MAX_BUFFER_BYTES", 2)
    with pytest.raises(Malformed, match="buffer size"):
        decode(GOOD)


def test_another_protocol_is_told_both_numbers() -> None:
    with pytest.raises(OtherProtocol, match=r"9.*3.*upgrade") as caught:
        decode(framed(b"whatever they say there", 200, protocol=9))
    assert caught.value.theirs == 9


def test_a_header_too_long_is_our_own_bug() -> None:
    with pytest.raises(AssertionError, match="header of"):
        encode(messages.Refuse(0, "x" * messages.MAX_HEADER))


def refused(frames: list[bytes]) -> bool:
    try:
        decode(frames)
    except messages.WireError:
        return True
    return False


def test_every_flipped_bit_in_front_is_noticed() -> None:
    front = b"".join(GOOD[:2])
    for bit in range(8 * len(front)):
        flipped = bytearray(front)
        flipped[bit // 8] ^= 1 << bit % 8
        if flipped[2] == releases.OLDEST:
            continue  # one that is spoken too: the message is the same
        assert refused([bytes(flipped[:16]), bytes(flipped[16:]), *GOOD[2:]]), bit


def test_every_truncation_is_noticed() -> None:
    for message in MESSAGES:
        prefix, header = parts(*encode(message))
        for at in range(len(header)):
            tag = messages.TYPES.index(type(message))
            # Also when whoever cut it counted and hashed again, but for defaults left out.
            assert refused([prefix, header[:at]])
            assert refused(framed(header[:at], tag))


@settings(max_examples=300)
@given(st.lists(st.binary(max_size=40), max_size=5))
def test_random_frames_are_refused(frames: list[bytes]) -> None:
    assert refused(frames)


@settings(max_examples=600)
@given(st.integers(0, len(messages.TYPES) - 1), st.binary(max_size=60))
def test_random_headers_are_messages_or_malformed(tag: int, header: bytes) -> None:
    refused(framed(header, tag))


def test_wounded_headers_are_messages_or_malformed() -> None:
    """The hash made right again, as a hostile peer would: only the fields speak."""
    rng = random.Random(1)
    for _ in range(20_000):
        tag = rng.randrange(len(MESSAGES))
        header = bytearray(parts(*encode(MESSAGES[tag]))[1][: rng.choice((8, 40, 5000))])
        for _ in range(rng.randint(1, 3)):
            header[rng.randrange(len(header))] = rng.randrange(256)
        refused(framed(bytes(header), tag))


@given(st.binary(max_size=60))
def test_bodies_are_read_or_malformed(body: bytes) -> None:
    for read in (hello_payload.decode, hello_payload.unpack):
        with contextlib.suppress(Malformed):
            read(body)


def test_an_introduction_comes_back() -> None:
    said = HelloPayload(
        shared={"a": {"b": 1}},
        spaces="words",
        unroll_bytes=5,
        streams=((0, 1, 5, 6, ((1, 2), (3, 5))),),
        trained=((2**63 - 1, 0, ((0, 4),)),),
        held=((2**63 - 1, 7, 0, 4),),
        want=3,
    )
    assert hello_payload.decode(hello_payload.encode(said)) == said
    assert hello_payload.unpack(hello_payload.pack({"x": [1, b"y"], 2: None})) == {
        "x": [1, b"y"],
        2: None,
    }


@pytest.mark.parametrize(
    "stream",
    [
        (0, 5, 4, 4, ()),  # floor above next
        (0, 0, 4, 3, ()),  # started less than was put
        (0, 0, 4, 6, ()),  # more than one at a time
        (0, 0, 4, 4, ((0, 5),)),  # has what it never made
        (0, 2, 4, 4, ((1, 3),)),  # below its own floor
        (0, 0, 4, 4, ((2, 3), (0, 1))),
        (0, 0, 4, 4, ((3, 2),)),
        (0, 0, 2**60, 2**60, ()),
    ],
)
def test_streams_that_cannot_be(stream: tuple[int, int, int, int, tuple[()]]) -> None:
    with pytest.raises(Malformed):
        hello_payload.decode(hello_payload.encode(HelloPayload(streams=(stream,))))


def test_ranges() -> None:
    assert messages.ranges([]) == ()
    assert messages.ranges([1, 2, 3, 7]) == ((1, 4), (7, 8))
