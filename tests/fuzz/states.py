"""Targets: the pure state machines, given any sequence of messages that decode."""

from collections.abc import Sequence

import msgspec
import xxhash

from headrace.broker.peers.inbox import Inbox, Verdict
from headrace.broker.peers.outbox import FinishedUnroll, Outbox
from headrace.broker.protocol import messages
from headrace.broker.protocol.messages import (
    Ack,
    Announce,
    Chunk,
    Deliver,
    Limit,
    Mark,
    Open,
    Payload,
    Piece,
    Pong,
    Reached,
    Recall,
)
from headrace.broker.transport.bulk.reassembly import Reassembly
from headrace.broker.transport.bulk.sender import BulkSender
from headrace.broker.weights import blobs
from headrace.broker.weights.blobs import Blob
from headrace.broker.weights.fetch import WeightFetch
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
    return Blob(announce, tuple(parts))


def fetch(data: bytes) -> None:
    """Announce and Chunk in any order and shape: never a wrong body, never an older version."""
    reader, own, version, held = Reader(data), WeightFetch(), -1, {}
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
            own.ask_missing()
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
                assert own._tags[key] == tag
        elif doing == 3:
            keys = [key] if key in own._tags else []
            for done in own.trained(keys, version=1, free=3):
                messages.encode(done)
        elif doing == 4:
            own.give_up([key] if key in own._tags else [])
        else:
            messages.encode(own.ping(version=1, free=3, stats={}))
            own.held()
        assert len(own._tags) == len(own._held)


def _deliver(key: tuple[int, int, int], tag: int, *, floor: int) -> Deliver:
    return Deliver(
        tag=tag,
        attempt=1,
        actor="a",
        inc=key[0],
        stream=key[1],
        seq=key[2],
        floor=floor,
        version_min=0,
        version_max=0,
        steps=1,
        digest=0,
        ended=0,
        episodes=(),
    )


def outbox(data: bytes) -> None:
    """What a sampler hears from a broker, true or not: everything put is settled at most once."""
    reader, own = Reader(data), Outbox(inc=1, streams=3)
    while reader.left > 0:
        stream = reader.byte() % 3
        if own.may_start(stream, 1 << 60):
            own.start(stream)
            own.put(stream, FinishedUnroll([b""], (0, 0), steps=1, digest=0))
        try:
            message, _ = messages.decode(shaping.message(reader))
        except messages.WireError:
            continue
        if isinstance(message, Limit):
            own.on_limit(message)
        elif isinstance(message, Ack):
            own.on_ack(message)
        elif isinstance(message, Recall):
            messages.encode(own.on_recall(message))
        elif isinstance(message, Pong):
            assert len(own.resend(message.missing)) <= 64 * max(1, len(own))
        own.hello_streams()
        assert own.generated == sum(own.outcomes.values()) + len(own)
        for ping in own.pings({}, 0):
            messages.encode(ping)


def _plain(frame: Payload) -> messages.Buffer:
    assert isinstance(frame, bytes | bytearray | memoryview)
    return frame


def pieces(data: bytes) -> None:
    """Open and Piece in any order: what becomes whole is what was opened, and nothing more than
    that is in memory."""
    reader, own = Reader(data), Reassembly()
    body, sizes = b"", [0]
    while reader.left > 0:
        doing = reader.byte() % 6
        if doing == 0:
            number = reader.byte() % len(_BODIES)
            body, cut = _BODIES[number], reader.byte() % 64
            sizes = [min(cut, len(body)), max(0, len(body) - cut)]
            own.begin(Open(number + 1, tuple(sizes)), Chunk(number, 0))
        elif doing == 1:
            own.refuse(Open(shaping.number(reader) & 2**64 - 1, (reader.byte(),)))
        elif doing == 2:
            own.forget()
        else:
            have = own.answer(Mark(1), 0.0).have
            at = have if doing < 5 else abs(shaping.number(reader))
            part = body[at : at + reader.byte() * 4] if at < 1 << 40 else b"x"
            half = len(part) // 2
            whole = own.add(Piece(min(at, 1 << 53)), [part[:half], part[half:]])
            if whole is not None:
                assert [len(buffer) for buffer in whole[1]] == sizes
                assert b"".join(whole[1]) == body
        assert own.size == (0 if own.message is None else sum(sizes))


def bulk(data: bytes) -> None:
    """What a peer says to marks, true or not: what was put goes out in order, never more of it at
    once than there is room for, and always a message."""
    reader, own, now = Reader(data), BulkSender(10.0), 0.0
    marks: list[int] = []
    sent = 0

    def send(frames: Sequence[Payload]) -> bool:
        nonlocal sent
        message, parts = messages.decode([_plain(frame) for frame in frames])
        if isinstance(message, Mark):
            marks.append(message.number)
        sent += sum(map(len, parts))
        return reader.byte() % 8 > 0

    while reader.left > 0:
        doing = reader.byte() % 6
        now += reader.byte() / 16
        if doing < 2:
            body = _BODIES[reader.byte() % len(_BODIES)] * (1 + reader.byte())
            own.put(reader.byte() % 8, messages.encode(Chunk(1, 1), body))
        elif doing == 2:
            own.drop(reader.byte() % 8)
        elif doing == 3:
            own.beat(send, now)
        else:
            number = reader.pick(marks) if marks else 0
            have, digest = abs(shaping.number(reader)), abs(shaping.number(reader))
            own.reached(Reached(number, reader.byte(), digest, have), now)
        before, room = sent, own.window.size
        own.flush(send, now)
        assert sent - before <= 2 * room + (1 << 18)
        assert 0 < own.window.piece <= own.window.size <= 64 << 20
