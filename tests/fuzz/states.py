"""Targets: the pure state machines, given any sequence of messages that decode."""

import msgspec
import xxhash

from broker import blobs, wire
from broker.blobs import Blob, Fetch
from broker.inbox import Inbox, Verdict
from broker.outbox import Outbox
from broker.wire import Ack, Announce, Chunk, Deliver, Limit, Pong, Recall
from tests.fuzz import shaping
from tests.fuzz.reading import Reader

_CHUNK = 64
# What a holder could have: right ones, for the fuzzer to spoil.
_BODIES = [bytes((n * k) % 251 for k in range(size)) for n, size in enumerate((1, 64, 200, 900))]


def _blob(version: int, body: bytes) -> Blob:
    parts = [body[at : at + _CHUNK] for at in range(0, len(body), _CHUNK)]
    hashes = b"".join(xxhash.xxh3_64_digest(part) for part in parts)
    digest = xxhash.xxh3_128_hexdigest(body)
    announce = Announce(version, "layout", digest, len(body), _CHUNK, hashes)
    return Blob(announce, memoryview(body))


def fetch(data: bytes) -> None:
    """Announce and Chunk in any order and shape: never a wrong body, never an older version."""
    reader, own, version, held = Reader(data), Fetch(), -1, {}
    while reader.left > 0:
        doing, number = reader.byte() % 8, reader.byte() % 6
        body = reader.pick(_BODIES)
        right = _blob(number, body)
        if doing == 0:
            forged = shaping.number(reader)
            field = reader.pick(("version", "size", "chunk"))
            lie = msgspec.structs.replace(right.announce, **{field: forged})
            own.on_announce(lie)
        elif doing == 1:
            lie = msgspec.structs.replace(right.announce, digest="0" * 32)
            own.on_announce(lie)
        elif doing == 2:
            own.again()
        elif doing <= 4:
            held[number] = right
            own.on_announce(right.announce)
        else:
            source = held.get(number, right)
            index = shaping.number(reader)
            at = index * _CHUNK
            part = bytearray(source.body[at : at + _CHUNK] if index < 64 else b"")
            if doing == 7 and part:
                part[reader.byte() % len(part)] ^= 1 << reader.byte() % 8
            whole, gets = own.on_chunk(Chunk(number, index), part)
            assert all(0 <= get.lo < get.hi <= get.lo + blobs.WINDOW for get in gets)
            if whole is not None:
                assert whole.announce.digest == xxhash.xxh3_128_hexdigest(whole.body)
                assert own.version > version
        assert own.version >= version
        version = own.version


def inbox(data: bytes) -> None:
    """Deliveries as no honest broker sends them; what the learner answers must be sendable."""
    reader, own = Reader(data), Inbox(inc=1)
    while reader.left > 0:
        doing = reader.byte() % 6
        number = shaping.number
        key = (reader.byte() % 2, reader.byte() % 3, reader.byte() % 16)
        if doing < 3:
            tag = number(reader)
            if own.deliver(_deliver(key, tag, floor=reader.byte() % 20)) is Verdict.NEW:
                assert own.tag_of(key) == tag
        elif doing == 3:
            keys = [key] if key in own._tags else []
            for done in own.trained(keys, version=1, free=3):
                wire.encode(done)
        elif doing == 4:
            own.give_up([key] if key in own._tags else [])
        else:
            wire.encode(own.ping(version=1, free=3, stats={}))
            own.held()
        assert len(own._tags) == len(own._held)


def _deliver(key: tuple[int, int, int], tag: int, *, floor: int) -> Deliver:
    return Deliver(
        tag=tag, attempt=1, actor="a", inc=key[0], stream=key[1], seq=key[2], floor=floor,
        version_min=0, version_max=0, steps=1, digest=0, ended=0, episodes=(),
    )  # fmt: skip


def outbox(data: bytes) -> None:
    """What a sampler hears from a broker, true or not: everything put is settled at most once."""
    reader, own = Reader(data), Outbox(inc=1, streams=3)
    while reader.left > 0:
        stream = reader.byte() % 3
        if own.may_start(stream, 1 << 60):
            own.start(stream)
            own.put(stream, versions=(0, 0), steps=1, digest=0, ended=0, episodes=(), buffers=[b""])
        try:
            message, _ = wire.decode(shaping.message(reader))
        except wire.WireError:
            continue
        if isinstance(message, Limit):
            own.on_limit(message)
        elif isinstance(message, Ack):
            own.on_ack(message)
        elif isinstance(message, Recall):
            wire.encode(own.on_recall(message))
        elif isinstance(message, Pong):
            assert len(own.resend(message.missing)) <= 64 * max(1, len(own))
        own.introduction()
        assert own.generated == sum(own.outcomes.values()) + len(own)
        for ping in own.pings({}, 0):
            wire.encode(ping)
