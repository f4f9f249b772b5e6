"""Targets: whatever turns outside bytes into values. Each takes any bytes and raises only when the
decoder did what it must not: another error than its own, or a value that breaks a promise."""

import contextlib
import struct

import msgspec
from xxhash import xxh32_intdigest

from broker import endpoints, introduction, wire
from launch import config
from tests.fuzz.reading import Reader

_PREFIX = struct.Struct("!2sBBHHII")
_TYPES = len(wire.TYPES) + 1  # and one that there is not
_BUFFERS = [b""] * 36
_LONGEST_NAME = "\N{GRINNING FACE}" * 200


def decode_raw(data: bytes) -> None:
    """wire.decode on frames that the fuzzer cuts itself."""
    cut = 16 + (data[16] if len(data) > 16 else 0)
    with contextlib.suppress(wire.WireError):
        wire.decode([data[:16], data[17 : cut + 1], data[cut + 1 :]])


def decode(data: bytes) -> None:
    """wire.decode on a header whose prefix is right: every byte reaches the decoder of its type."""
    if len(data) < 2:
        return
    tag, count, header = data[0] % _TYPES, data[1], data[2:]
    if count > 2:
        count = 0 if count < 250 else 28 + count % 8
    check = xxh32_intdigest(header, seed=tag << 16 | count)
    prefix = _PREFIX.pack(b"HR", wire.PROTOCOL, tag, count, 0, len(header), check)
    try:
        message, _ = wire.decode([prefix, header, *_BUFFERS[:count]])
    except wire.WireError:
        return
    kept(message)


def kept(message: wire.Message) -> None:
    """What the rest of the program relies on once a message has a type."""
    match message:
        case wire.Hello():
            assert len(message.name) <= 200
        case wire.Unroll():
            counts = (message.stream, message.seq, message.floor)
            assert min(counts) >= 0 and max(counts) <= 2**53
            assert len(message.episodes) <= wire.MAX_EPISODES
            # What a broker took from one peer it must be able to say to the next, in one header.
            wire.encode(
                wire.Deliver(
                    2**63 - 1, 100, _LONGEST_NAME, message.inc, message.stream, message.seq,
                    message.floor, message.version_min, message.version_max, message.steps,
                    message.digest, message.ended, message.episodes,
                )
            )  # fmt: skip
        case wire.Announce():
            wire.encode(message)
        case wire.Get():
            assert 0 <= message.lo <= 2**53 and 0 <= message.hi <= 2**53
        case wire.Chunk():
            assert 0 <= message.index <= 2**53
        case wire.Ack():
            assert message.outcome in wire.Outcome
            assert all(len(span) == 3 for span in message.ranges)
        case wire.Nack():
            assert message.outcome in wire.Outcome and isinstance(message.reason, str)
        case wire.Ping() | wire.LearnerPing():
            assert all(isinstance(value, float) for value in message.stats.values())
        case wire.Limit():
            assert all(len(grant) == 3 for grant in message.grants)
        case wire.Recall() | wire.Returned():
            assert len(message.streams) <= wire.MAX_ENTRIES
        case wire.Done():
            assert all(len(span) == 2 for span in message.tags)
        case wire.Pong() | wire.Bye():
            assert isinstance(message, wire.Pong) or isinstance(message.text, str)
        case wire.Welcome():
            assert isinstance(message.announce, str)
        case wire.Refuse() | wire.Acting():
            assert wire.encode(message)
        case wire.Open():
            assert len(message.sizes) <= wire.MAX_BUFFERS and 0 <= message.digest < 2**64
            assert all(0 <= size <= wire.MAX_BUFFER_BYTES for size in message.sizes)
        case wire.Piece() | wire.Mark() | wire.Reached():
            wire.encode(message)
        case wire.Deliver():
            assert len(message.episodes) <= wire.MAX_EPISODES and len(message.actor) <= 200


def introduce(data: bytes) -> None:
    """The Introduction of a HELLO."""
    with contextlib.suppress(wire.Malformed):
        said = introduction.decode(data)
        for _, floor, following, started, unacked in said.streams:
            assert floor <= following <= started <= following + 1
            assert all(floor <= lo <= hi <= following for lo, hi in unacked)


def unpack(data: bytes) -> None:
    """Any plain data: the run in WELCOME, the numbers in STATUS."""
    with contextlib.suppress(wire.Malformed):
        introduction.unpack(data)


def shared_run(data: bytes) -> None:
    """The run in WELCOME, as a sampler takes it."""
    try:
        said = introduction.unpack(data)
    except wire.Malformed:
        return
    if isinstance(said, dict):
        with contextlib.suppress(config.ConfigError):
            run = config.from_shared(said)
            assert config.shared(config.from_shared(config.shared(run))) == config.shared(run)


_HONEST = config.for_peers(config.Run())
_SECTIONS = sorted(_HONEST)


def spoilt_run(data: bytes) -> None:
    """An honest run in which one value, one key or one section is another."""
    reader = Reader(data)
    plain = msgspec.msgpack.decode(msgspec.msgpack.encode(_HONEST))
    section = reader.pick(_SECTIONS)
    key = reader.pick(sorted(plain[section]))
    try:
        value = introduction.unpack(reader.rest())
    except wire.Malformed:
        return
    plain[section][key] = value
    shared_run(introduction.pack(plain))


def endpoint(data: bytes) -> None:
    """An address that a user, or a WELCOME, gives."""
    text = data.decode(errors="replace")
    with contextlib.suppress(endpoints.EndpointError):
        address = endpoints.check(text)
        endpoints.seen_from("tcp://127.0.0.1:5755", endpoints.announce_endpoint(address))
