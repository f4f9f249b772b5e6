"""Targets: whatever turns outside bytes into values. Each takes any bytes and raises only when the
decoder did what it must not: another error than its own, or a value that breaks a promise."""

import contextlib
import struct

import msgspec
from xxhash import xxh32_intdigest

from headrace.broker.protocol import hello_payload, messages, releases
from headrace.broker.transport import endpoints
from headrace.launch.config import run_file
from headrace.launch.config.shared_run import for_peers, from_shared, shared
from tests.fuzz.reading import Reader

_PREFIX = struct.Struct("!2sBBHHII")
_TYPES = len(messages.TYPES) + 1  # and one that there is not
_BUFFERS = [b""] * 36
_LONGEST_NAME = "\N{GRINNING FACE}" * 200


def decode_raw(data: bytes) -> None:
    """wire.decode on frames that the fuzzer cuts itself."""
    cut = 16 + (data[16] if len(data) > 16 else 0)
    with contextlib.suppress(messages.WireError):
        messages.decode([data[:16], data[17 : cut + 1], data[cut + 1 :]])


def decode(data: bytes) -> None:
    """wire.decode on a header whose prefix is right: every byte reaches the decoder of its type."""
    if len(data) < 2:
        return
    tag, count, header = data[0] % _TYPES, data[1], data[2:]
    if count > 2:
        count = 0 if count < 250 else 28 + count % 8
    check = xxh32_intdigest(header, seed=tag << 16 | count)
    prefix = _PREFIX.pack(b"HR", releases.PROTOCOL, tag, count, 0, len(header), check)
    try:
        message, _ = messages.decode([prefix, header, *_BUFFERS[:count]])
    except messages.WireError:
        return
    kept(message)


def kept(message: messages.Message) -> None:
    """What the rest of the program relies on once a message has a type."""
    match message:
        case messages.Hello():
            assert len(message.name) <= 200
        case messages.Unroll():
            counts = (message.stream, message.seq, message.floor)
            assert min(counts) >= 0 and max(counts) <= 2**53
            assert len(message.episodes) <= messages.MAX_EPISODES
            # What a broker took from one peer it must be able to say to the next, in one header.
            messages.encode(
                messages.Deliver(
                    2**63 - 1,
                    100,
                    _LONGEST_NAME,
                    message.inc,
                    message.stream,
                    message.seq,
                    message.floor,
                    message.version_min,
                    message.version_max,
                    message.steps,
                    message.digest,
                    message.ended,
                    message.episodes,
                )
            )
        case messages.Announce():
            messages.encode(message)
        case messages.Get():
            assert 0 <= message.lo <= 2**53 and 0 <= message.hi <= 2**53
        case messages.Chunk():
            assert 0 <= message.index <= 2**53
        case messages.Ack():
            assert message.outcome in messages.Outcome
            assert all(len(span) == 3 for span in message.ranges)
        case messages.Nack():
            assert message.outcome in messages.Outcome and isinstance(message.reason, str)
        case messages.Ping() | messages.LearnerPing():
            assert all(isinstance(value, float) for value in message.stats.values())
        case messages.Limit():
            assert all(len(grant) == 3 for grant in message.grants)
        case messages.Recall() | messages.Returned():
            assert len(message.streams) <= messages.MAX_ENTRIES
        case messages.Done():
            assert all(len(span) == 2 for span in message.tags)
        case messages.Pong() | messages.Bye():
            assert isinstance(message, messages.Pong) or isinstance(message.text, str)
        case messages.Welcome():
            assert isinstance(message.announce, str)
        case messages.Refuse() | messages.Acting():
            assert messages.encode(message)
        case messages.Open():
            assert len(message.sizes) <= messages.MAX_BUFFERS and 0 <= message.digest < 2**64
            assert all(0 <= size <= messages.MAX_BUFFER_BYTES for size in message.sizes)
        case messages.Piece() | messages.Mark() | messages.Reached():
            messages.encode(message)
        case messages.Deliver():
            assert len(message.episodes) <= messages.MAX_EPISODES and len(message.actor) <= 200


def introduce(data: bytes) -> None:
    """The HelloPayload of a HELLO."""
    with contextlib.suppress(messages.Malformed):
        said = hello_payload.decode(data)
        for _, floor, following, started, unacked in said.streams:
            assert floor <= following <= started <= following + 1
            assert all(floor <= lo <= hi <= following for lo, hi in unacked)


def unpack(data: bytes) -> None:
    """Any plain data: the run in WELCOME, the numbers in STATUS."""
    with contextlib.suppress(messages.Malformed):
        hello_payload.unpack(data)


def shared_run(data: bytes) -> None:
    """The run in WELCOME, as a sampler takes it."""
    try:
        said = hello_payload.unpack(data)
    except messages.Malformed:
        return
    if isinstance(said, dict):
        with contextlib.suppress(run_file.ConfigError):
            run = from_shared(said)
            assert shared(from_shared(shared(run))) == shared(run)


_HONEST = for_peers(run_file.Run())
_SECTIONS = sorted(_HONEST)


def spoilt_run(data: bytes) -> None:
    """An honest run in which one value, one key or one section is another."""
    reader = Reader(data)
    plain = msgspec.msgpack.decode(msgspec.msgpack.encode(_HONEST))
    section = reader.pick(_SECTIONS)
    key = reader.pick(sorted(plain[section]))
    try:
        value = hello_payload.unpack(reader.rest())
    except messages.Malformed:
        return
    plain[section][key] = value
    shared_run(hello_payload.pack(plain))


def endpoint(data: bytes) -> None:
    """An address that a user, or a WELCOME, gives."""
    text = data.decode(errors="replace")
    with contextlib.suppress(endpoints.EndpointError):
        address = endpoints.check(text)
        endpoints.seen_from("tcp://127.0.0.1:5755", endpoints.announce_endpoint(address))
