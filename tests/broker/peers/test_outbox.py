"""The sampler's end: nothing leaves it but by an acknowledgement."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.peers.outbox import FinishedUnroll, Outbox
from headrace.broker.protocol.messages import (
    MAX_ENTRIES,
    Ack,
    Limit,
    Outcome,
    Unroll,
    decode,
    encode,
)


def outbox(*limits: int, version: int = 0) -> Outbox:
    box = Outbox(inc=7, streams=len(limits))
    box.on_limit(Limit(tuple((n, limit, version) for n, limit in enumerate(limits))))
    return box


def put(box: Outbox, stream: int = 0, *, text: bytes = b"body") -> Unroll:
    """One unroll from start to finish; returns what was sent."""
    box.start(stream)
    frames = box.put(stream, FinishedUnroll((text,), (1, 2), steps=5, digest=9))
    message, buffers = decode([bytes(frame) for frame in frames if not hasattr(frame, "bytes")])
    assert isinstance(message, Unroll) and bytes(buffers[0]) == text
    return message


def ack(*ranges: tuple[int, int, int], outcome: Outcome = Outcome.TRAINED) -> Ack:
    return Ack(outcome, ranges)


def test_credit_is_absolute_and_never_falls() -> None:
    box = Outbox(inc=7, streams=2)
    assert not box.may_start(0, 99)
    box.on_limit(Limit(((0, 2, 0),)))
    box.on_limit(Limit(((0, 1, 0), (9, 5, 0), (-1, 5, 0))))  # late; and streams we do not have
    assert box.may_start(0, 0) and not box.may_start(1, 0)
    put(box)
    put(box)
    assert not box.may_start(0, 0)


def test_credit_waits_for_its_weights() -> None:
    box = outbox(1, version=4)
    assert not box.may_start(0, 3) and box.waits_for_weights(0, 3)
    assert box.may_start(0, 4) and not box.waits_for_weights(0, 4)
    put(box)
    assert not box.waits_for_weights(0, 3)  # no credit to wait for


def test_each_credit_waits_for_its_own_weights() -> None:
    """A second one, for newer weights, does not hold back the first."""
    box = outbox(1, version=4)
    box.on_limit(Limit(((0, 3, 6),)))
    box.on_limit(Limit(((0, 1, 4), (0, 3, 6))))  # said again, late
    assert box.may_start(0, 4)
    put(box)
    assert box.waits_for_weights(0, 5) and not box.may_start(0, 5)
    assert box.may_start(0, 6)
    box.hello_streams()  # what was not used ends, and comes anew for newer weights
    assert not box.may_start(0, 9)
    box.on_limit(Limit(((0, 2, 8),)))
    assert not box.may_start(0, 7) and box.may_start(0, 8)


def test_numbers_in_order_and_floor() -> None:
    box = outbox(9)
    assert [(put(box).seq, box.last(0)) for _ in range(3)] == [(0, 0), (1, 1), (2, 2)]
    box.on_ack(ack((0, 1, 2)))
    assert put(box).floor == 0  # seq 0 is open
    box.on_ack(ack((0, 0, 1)))
    message = put(box)
    assert (message.seq, message.floor, message.inc) == (4, 2, 7)


def test_an_acknowledgement_counts_once() -> None:
    box = outbox(9, 9)
    put(box, 0), put(box, 0), put(box, 1)
    assert box.on_ack(ack((0, 0, 2), (1, 0, 1), (5, 0, 1), outcome=Outcome.STALE)) == [
        (0, 0, 2),
        (1, 0, 1),
    ]
    assert box.on_ack(ack((0, 0, 2))) == []
    assert box.on_ack(ack((0, 0, 2**50))) == []  # forged: must not hold the loop
    assert (box.outcomes[Outcome.STALE], box.outcomes[Outcome.TRAINED], len(box)) == (3, 0, 0)


def test_what_is_missing_goes_out_again_as_it_was() -> None:
    box = outbox(9)
    for text in (b"a", b"b", b"c"):
        put(box, text=text)
    box.on_ack(ack((0, 1, 2)))
    again = [
        decode([bytes(f) for f in frames if not hasattr(f, "bytes")])
        for _, frames in box.resend([(0, 0, 2**50), (3, 0, 1)])
    ]
    assert [(m.seq, bytes(buffers[0])) for m, buffers in again if isinstance(m, Unroll)] == [
        (0, b"a"),
        (2, b"c"),
    ]
    assert box.resend([(0, 1, 2)]) == []


def test_a_ping_leaves_out_what_waits_to_be_sent() -> None:
    """It overtakes that, and what it names and is not there is sent again."""
    box = outbox(9, 9)
    for _ in range(4):
        put(box, 0), put(box, 1)
    waiting = {(0, 2), (0, 3), (1, 1)}
    (ping,) = box.pings({}, 0, waiting=waiting)
    assert ping.unacked == ((0, 0, 2), (1, 0, 1), (1, 2, 4))
    (later,) = box.pings({}, 0)
    assert later.unacked == ((0, 0, 4), (1, 0, 4))
    assert box.hello_streams()[0][4] == ((0, 4),)  # a HELLO names all


def test_a_new_broker_hears_everything_and_gives_credit_anew() -> None:
    box = outbox(5, 5, version=3)
    put(box), put(box), put(box)
    box.on_ack(ack((0, 0, 1), (0, 2, 3)))
    box.start(0)  # one is running
    assert box.hello_streams() == ((0, 1, 3, 4, ((1, 2),)), (1, 0, 0, 0, ()))
    assert not box.may_start(0, 99) and not box.may_start(1, 99)
    box.put(0, FinishedUnroll((), (1, 1), steps=1, digest=0))
    box.on_limit(Limit(((0, 5, 0),)))
    assert box.may_start(0, 0)  # the old broker's floor version is forgotten too


def test_a_beat_names_all_that_is_open_in_messages_that_fit() -> None:
    streams = 3 * MAX_ENTRIES
    box = outbox(*[9] * streams)
    assert [ping.unacked for ping in box.pings({}, 0)] == [()]
    for stream in range(streams):
        for _ in range(3):
            put(box, stream)
        box.on_ack(ack((stream, 1, 2)))
    pings = box.pings({"steps": 1.0}, 0)
    assert len(pings) == 6
    assert [r for ping in pings for r in ping.unacked] == box.unacked()
    assert all(encode(ping) for ping in pings)


def test_the_end() -> None:
    box = outbox(9, 9)
    put(box, 0), put(box, 0), put(box, 1)
    box.on_ack(ack((0, 0, 1)))
    assert box.abandon() == [(0, 1, 2), (1, 0, 1)]
    assert (box.outcomes[Outcome.ABANDONED], len(box), box.may_start(0, 99)) == (2, 0, False)
    assert box.on_ack(ack((0, 1, 2))) == []
    assert box.generated == sum(box.outcomes.values()) == 3


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12), st.sampled_from(Outcome))))
def test_generated_is_settled_and_open(moves: list[tuple[int, int, Outcome]]) -> None:
    box = outbox(99, 99, 99)
    for stream, seq, outcome in moves:
        put(box, stream)
        box.on_ack(ack((stream, seq, seq + 2), outcome=outcome))
        assert box.generated == sum(box.outcomes.values()) + len(box)
        for number, floor, following, started, unacked in box.hello_streams():
            assert floor <= following == started
            assert floor == (unacked[0][0] if unacked else following), number
        box.on_limit(Limit(tuple((n, 99, 0) for n in range(3))))
