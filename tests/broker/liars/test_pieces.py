"""Pieces at a broker: what comes in them is as if it had come whole, and nobody pins memory so."""

from typing import Any

import pytest

from headrace.broker.protocol import messages
from headrace.broker.protocol.hello_payload import HelloPayload
from headrace.broker.protocol.messages import Mark, Message, Open, Piece, Reached, Unroll
from headrace.broker.weights.blobs import Blob
from tests.broker.liars.talk import A, B, Broker, L, W, publish, works

BODY = bytes(range(250)) * 20  # 5,000 bytes; a learner of 100 lets 8,293 in
DIGEST = 77


def unroll(seq: int = 0, inc: int = 1, stream: int = 0) -> Unroll:
    return Unroll(inc, stream, seq, 0, 0, 0, 8, 1)


def opens(one: Broker, route: bytes, message: Message, *sizes: int, digest: int = DIGEST) -> None:
    head = messages.encode(message, *(b"" for _ in sizes))[:2]
    one.hears(route, Open(digest, sizes), *(bytes(part) for part in head))  # type: ignore[arg-type]


def reached(one: Broker, route: bytes = A) -> Reached:
    """What it says to a mark."""
    one.hears(route, Mark(5))
    (said,) = one.told(Reached)
    assert isinstance(said, Reached) and said.number == 5
    return said


@pytest.fixture
def one() -> Broker:
    """A learner and two samplers that have sent nothing."""
    broker = Broker()
    broker.learner()
    broker.sampler()
    broker.sampler(B, 2)
    broker.pump()
    return broker


def bodies(one: Broker) -> list[bytes]:
    """Of what is here."""
    entries = [e for s in one.state.leases.sessions.values() for e in s.leases.values()]
    found: list[bytes] = []
    for entry in entries:
        parts: Any = entry.buffers
        found.append(b"".join(bytes(part) for part in parts))
    return found


def test_an_unroll_in_pieces_is_an_unroll(one: Broker) -> None:
    opens(one, A, unroll(), 2000, 0, 3000)
    for at in range(0, 5000, 700):
        assert one.state.received == 0
        one.hears(A, Piece(at), BODY[at : at + 700])
    assert one.state.received == 1 and one.server.bulk_arrivals.nbytes == 0
    one.pump()
    assert bodies(one) == [BODY]
    assert reached(one).have == 5000
    works(one, one.tags())
    assert sum(one.errors.values()) == 0


def test_a_piece_out_of_turn_is_left_alone_and_said(one: Broker) -> None:
    opens(one, A, unroll(), 5000)
    for at in (0, 2000, 1000, 1000, 4999, 0, 1 << 53):
        one.hears(A, Piece(at), BODY[at : at + 1000])
    assert (reached(one).digest, reached(one).have) == (DIGEST, 2000)
    one.hears(A, Piece(2000), *(BODY[at : at + 1000] for at in (2000, 3000, 4000)))
    one.pump()
    assert bodies(one) == [BODY]


def test_more_than_was_said_is_not_taken(one: Broker) -> None:
    opens(one, A, unroll(), 100)
    one.hears(A, Piece(0), BODY)
    assert reached(one).have == 0 and one.state.received == 0


def test_it_goes_on_at_another_connection(one: Broker) -> None:
    opens(one, A, unroll(), 5000)
    one.hears(A, Piece(0), BODY[:4000])
    one.sampler(b"another route", 1)
    one.pump()
    opens(one, b"another route", unroll(), 5000)
    assert reached(one, b"another route").have == 4000
    one.hears(b"another route", Piece(4000), BODY[4000:])
    one.pump()
    assert bodies(one) == [BODY]


def test_who_sends_all_of_it_again_is_understood(one: Broker) -> None:
    """It does not know yet that a part of it is here."""
    opens(one, A, unroll(), 2000, 3000)
    one.hears(A, Piece(0), BODY[:2700])
    one.sampler(b"another route", 1)
    opens(one, b"another route", unroll(), 2000, 3000)
    for at in range(0, 5000, 1000):
        one.hears(b"another route", Piece(at), BODY[at : at + 400], BODY[at + 400 : at + 1000])
    one.pump()
    assert bodies(one) == [BODY]


@pytest.mark.parametrize(
    ("route", "message", "sizes", "reason"),
    [
        (A, unroll(99), (5000,), "credit"),
        (A, unroll(stream=3), (5000,), "credit"),
        (A, unroll(inc=2), (5000,), "identity"),
        (A, unroll(), (5000, 5000), "size"),
        (A, unroll(), (messages.MAX_BUFFER_BYTES,) * 32, "size"),
        (A, messages.Chunk(1, 0), (5000,), "unexpected"),
        (A, messages.Hello("actor", "a", 1), (5000,), "unexpected"),
        (A, Open(1, (5,)), (5000,), "unexpected"),
        (L, unroll(inc=50), (5000,), "unexpected"),
        (L, messages.Chunk(1, 0), (messages.MAX_BUFFER_BYTES,), "size"),
        (W, messages.Watch(), (5000,), "unexpected"),
    ],
)
def test_what_would_not_be_taken_whole_is_not_begun(
    one: Broker, route: bytes, message: Message, sizes: tuple[int, ...], reason: str
) -> None:
    one.hello(W, messages.Hello("watcher", "w", 70))
    publish(one, L, 0)
    opens(one, route, message, *sizes)
    assert one.errors[reason] == 1
    assert one.server.bulk_arrivals.nbytes == 0
    if route is not W:  # it need not send the rest
        assert reached(one, route).have == sum(sizes)
    one.hears(route, Piece(0), BODY)
    one.pump()
    assert one.state.received == 0


def test_an_open_that_is_no_message(one: Broker) -> None:
    one.hears(A, Open(DIGEST, (5,)), b"x" * 16, b"y")
    one.hears(A, Open(DIGEST, (5,)), b"")
    one.hears(A, Open(DIGEST, (5,)))
    assert one.errors["malformed"] == 3 and one.server.bulk_arrivals.nbytes == 0


def test_what_is_here_is_not_taken_twice(one: Broker) -> None:
    one.unrolls([0])
    opens(one, A, unroll(), 5000)
    assert one.server.bulk_arrivals.nbytes == 0 and reached(one).have == 5000
    assert one.state.copies == 0  # the PING that names it brings the acknowledgement


def test_one_at_a_time(one: Broker) -> None:
    for seq in range(4):
        opens(one, A, unroll(seq), 5000, digest=seq + 1)
        one.hears(A, Piece(0), BODY[:2000])
        assert one.server.bulk_arrivals.nbytes == 5000
    one.hears(A, Piece(2000), BODY[2000:])
    one.pump()
    assert bodies(one) == [BODY]
    assert [
        e.unroll.seq for s in one.state.leases.sessions.values() for e in s.leases.values()
    ] == [3]


def test_nobody_pins_more_than_the_queue_may_hold() -> None:
    """Samplers that come back with what another broker granted, each with a half of one."""
    one = Broker()
    one.learner(unroll_bytes=100_000)
    for n in range(50):
        claims = HelloPayload(streams=((0, 0, 1, 1, ((0, 1),)),))
        one.hello(b"%d" % n, messages.Hello("actor", f"a{n}", 100 + n, spaces="s"), claims)
        opens(one, b"%d" % n, unroll(inc=100 + n), 90_000)
        one.hears(b"%d" % n, Piece(0), BODY)
    assert 0 < one.server.bulk_arrivals.nbytes <= one.state.queue_bytes
    assert one.errors["room"] > 0


def test_a_half_of_one_ends_with_its_session(one: Broker) -> None:
    for route, inc in ((A, 1), (B, 2)):
        opens(one, route, unroll(inc=inc), 5000)
        one.hears(route, Piece(0), BODY[:2000])
    assert one.server.bulk_arrivals.nbytes == 10_000
    one.hears(A, messages.Bye(1, False, "bye"))
    one.server._sweep(Broker.now)
    assert one.server.bulk_arrivals.nbytes == 5000
    Broker.now += 11.0
    one.hears(L, messages.LearnerPing(50, 0, 8, -1, (), {}))
    one.server._sweep(Broker.now)
    assert one.server.bulk_arrivals.nbytes == 0


def test_a_half_of_one_ends_with_its_credit(one: Broker) -> None:
    """Or when it came otherwise."""
    opens(one, A, unroll(), 5000)
    one.unrolls([0])
    one.server._sweep(Broker.now)
    assert one.server.bulk_arrivals.nbytes == 0
    assert reached(one).have == 5000


def test_chunks_in_pieces_are_chunks(one: Broker) -> None:
    body = bytes(range(256)) * 2000
    blob = Blob.of(1, "layout", body)
    one.state.credit.version = 1
    one.hears(L, blob.announce)
    for index in range(4):
        chunk, part = blob.chunks(messages.Get(1, index, index + 1))[0]
        opens(one, L, chunk, len(part), digest=index + 1)
        for at in range(0, len(part), 50_000):
            one.hears(L, Piece(at), bytes(part[at : at + 50_000]))
    assert one.server.weights.fetch.version == 1
    newest = one.server.weights.blob
    assert newest is not None
    assert b"".join(part for _, part in newest.chunks(messages.Get(1, 0, 4))) == body


def test_a_peer_that_never_answers_marks_gets_little(one: Broker) -> None:
    """However much it asks for; and the answer must be one that only a reader knows."""
    publish(one, L, 0, bytes(100_000))
    one.pump()
    for _ in range(50):
        one.hears(B, messages.Get(0, 0, 64))
        one.hears(B, Reached(0, 0, 0, 0))
    said = [message for route, message in one.pump() if route == B]
    kinds = [type(message) for message in said]
    assert kinds.count(messages.Chunk) == 0 and kinds.count(Open) == 1
    assert kinds.count(Piece) <= 8, "more than the first window"


def test_nobody_pins_versions_by_not_reading(one: Broker) -> None:
    """It asks for each new version, and reads none."""
    for version in range(300):
        one.state.credit.version = version
        publish(one, L, version, b"%d" % version + bytes(50_000))
        one.hears(B, messages.Get(version, 0, 64))
        one.pump()
    peer = one.server.roster.get(B)
    assert peer is not None and peer.bulk is not None
    assert len(peer.bulk) <= 128
