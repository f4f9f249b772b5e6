"""Unrolls over lines of every rate, without sockets and clocks: they arrive, as fast as the line
carries them, and beats are never behind them."""

import functools
import itertools

import pytest

from headrace.broker.protocol.messages import Mark, Message, Reached, Unroll, decode
from headrace.broker.transport.bulk.sender import BulkSender
from tests.broker.lines import Way, World, connect, reconnect, saturate, unroll

MBIT = 125_000.0  # bytes a second
LEASE = 10.0
LARGE = 6_500_000  # a DQN-sized batch of frames


def line(up_mbit: float, down_mbit: float, latency_s: float = 0.01) -> tuple[World, Way, Way]:
    return World(), Way(up_mbit * MBIT, latency_s), Way(down_mbit * MBIT, latency_s)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "mbit", "latency_s"),
    [
        (LARGE, 2, 0.001),
        (LARGE, 0.25, 0.05),
        (60_000_000, 2, 0.01),
        (LARGE, 100, 0.05),
        (20_000, 2, 0.001),
        (20_000, 0.064, 0.05),
        (262_144, 1, 0.25),
        (262_144, 20, 0.01),
    ],
)
def test_any_size_at_the_rate_of_any_line(size: int, mbit: float, latency_s: float) -> None:
    """A line of 64 kbit/s takes a second to find out; what is left of the first window then."""
    world, up, down = line(mbit, mbit, latency_s)
    peer, broker = connect(world, up, down, lease_s=LEASE)
    saturate(peer, size)
    world.run(10.0)
    before, length_s = up.carried, max(30.0, 2 * size / up.bytes_s)
    received = broker.bytes
    broker.beat_s = 0.0
    world.run(10.0 + length_s)
    assert up.carried - before > 0.93 * length_s * up.bytes_s, "the line was idle"
    # What came in a whole number of unrolls, and one that is not whole yet.
    assert broker.bytes - received + size > 0.9 * length_s * up.bytes_s
    numbers = [message.seq for message, _ in broker.took if isinstance(message, Unroll)]
    assert numbers == list(range(len(numbers))) and numbers
    assert broker.beat_s < LEASE / 4, "a beat waited behind bulk"
    assert broker.silence() < LEASE / 2


@pytest.mark.slow
@pytest.mark.parametrize(("up_mbit", "down_mbit"), [(2, 2), (1, 16), (16, 1)])
def test_both_directions_at_once(up_mbit: float, down_mbit: float) -> None:
    """Unrolls one way and weights the other: answers wait behind the other direction's bulk, and
    that is not taken for a slow line."""
    world, up, down = line(up_mbit, down_mbit)
    peer, broker = connect(world, up, down, lease_s=LEASE)
    saturate(peer, LARGE)
    saturate(broker, 131_072, ahead=64)
    world.run(40.0)
    before = up.carried, down.carried
    world.run(140.0)
    assert up.carried - before[0] > 0.85 * 100.0 * up.bytes_s
    assert down.carried - before[1] > 0.85 * 100.0 * down.bytes_s
    assert max(peer.beat_s, broker.beat_s) < LEASE / 4


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 8])
def test_several_share_a_line(count: int) -> None:
    """Each begins when the others have filled it."""
    world, up, down = line(2, 2)
    pairs = [connect(world, up, down, lease_s=LEASE) for _ in range(count)]
    for number, (peer, _) in enumerate(pairs):
        world.at(3.0 * number, functools.partial(saturate, peer, 400_000))
    world.run(40.0)
    before = [broker.bytes for _, broker in pairs]
    world.run(240.0)
    each = [broker.bytes - old for (_, broker), old in zip(pairs, before, strict=True)]
    assert sum(each) > 0.9 * 200.0 * up.bytes_s
    assert min(each) > sum(each) / count / 4, f"one has too small a part: {each}"
    assert max(broker.silence() for _, broker in pairs) < LEASE / 2


def test_small_ones_among_large_ones_are_not_stuck_for_ever() -> None:
    world, up, down = line(2, 2)
    peer, broker = connect(world, up, down)
    for seq in range(12):
        peer.put(seq, unroll(seq, bytes(LARGE if seq % 4 == 0 else 3000)))
    world.run(100.0)
    assert [len(body) for _, body in broker.took] == [LARGE, 3000, 3000, 3000] * 3


def test_a_line_that_breaks_again_and_again() -> None:
    """26 s of line, and it stands for 7 s at a time: what is there is not sent again."""
    world, up, down = line(2, 2)
    peer, broker = connect(world, up, down)
    body = bytes(range(250)) * (LARGE // 250)
    for number in itertools.count(1):
        peer.put(0, unroll(0, body[:1000], body[1000:]))
        world.run(7.0 * number)
        if broker.took:
            break
        reconnect(peer, broker)
    assert broker.took[0][1] == body
    assert up.carried < 1.3 * LARGE


def test_pieces_that_are_dropped_at_a_door_come_again() -> None:
    """As are those of a peer over its rate; also an Open, a Mark and the answer to one."""
    world, up, down = line(2, 2)
    peer, broker = connect(world, up, down)
    seen = itertools.count()

    def admits(_message: Message) -> bool:
        return next(seen) % 19 != 3

    broker.admits = peer.admits = admits
    body = bytes(range(250)) * 4000
    for beat in range(100):
        here = {got[0] for _, got in broker.took}
        # One whose last piece was dropped is named by a PONG.
        for seq in set(range(5)) - here if not peer.bulk else ():
            peer.put(seq, unroll(seq, seq.to_bytes(1), body))
        world.run(1.0 + beat)
    assert sorted(got[0] for _, got in broker.took) == list(range(5))
    assert all(got[1:] == body for _, got in broker.took)


def test_only_who_has_read_so_far_gets_more() -> None:
    """A peer that does not read, or says it has read what it cannot know, gets the first window."""
    sent: list[list[bytes]] = []
    bulk = BulkSender(LEASE)
    for seq in range(100):
        bulk.put(seq, unroll(seq, bytes(8000)))

    def send(frames: object) -> bool:
        sent.append([bytes(frame) for frame in frames])  # type: ignore[attr-defined]
        return True

    bulk.flush(send, 0.0)
    first = len(sent)
    marks = [message for message, _ in map(decode, sent) if isinstance(message, Mark)]
    assert sum(map(len, itertools.chain(*sent))) < 40_000 and marks
    for lie in range(1000):
        bulk.reached(Reached(lie, 0, 0, 0), 0.1)
        bulk.flush(send, 0.1)
    assert len(sent) == first
    bulk.reached(Reached(marks[-1].number, 0, 0, 0), 0.2)
    bulk.flush(send, 0.2)
    assert len(sent) > first


def test_a_socket_without_room_loses_nothing() -> None:
    world, up, down = line(100, 100)
    peer, broker = connect(world, up, down)
    full, send = itertools.count(), peer.send
    peer.send = lambda frames: next(full) % 3 == 0 and send(frames)  # type: ignore[method-assign]
    body = bytes(range(256)) * 64
    for seq in range(9):
        peer.put(seq, unroll(seq, body[: 2000 * seq]))
    world.run(60.0)
    assert [got for _, got in broker.took] == [body[: 2000 * seq] for seq in range(9)]


def test_what_waits_waits_once_and_can_be_called_off() -> None:
    world, up, down = line(2, 2)
    peer, broker = connect(world, up, down)
    peer.put("large", unroll(0, bytes(LARGE)))
    peer.put("small", unroll(1, b"x"))
    peer.put("small", unroll(1, b"x"))
    world.run(2.0)
    assert "large" in peer.bulk and "small" in peer.bulk and len(peer.bulk) == 2
    peer.bulk.drop("large")
    world.run(6.0)
    assert [body for _, body in broker.took] == [b"x"]


def test_a_fast_line_soon_carries_everything_whole() -> None:
    """No copy, no cut: as if there were no pieces."""
    world, up, down = line(8000, 8000, 0.00005)
    peer, broker = connect(world, up, down)
    saturate(peer, 262_144, ahead=16)
    world.run(0.05)
    heard = len(broker.heard)
    got = len(broker.took)
    world.run(0.1)
    unrolls, messages = len(broker.took) - got, len(broker.heard) - heard
    assert unrolls > 100
    assert messages - unrolls < unrolls / 4, "marks are few"
