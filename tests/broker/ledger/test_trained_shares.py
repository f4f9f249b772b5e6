"""Tests the shares of the groups in what is trained."""

import pytest

from headrace.broker.ledger.records import Stream
from headrace.broker.ledger.trained_shares import TrainedShares
from tests.broker.ledger.accounts import ready, send, step, tags


def test_a_window_counts_those_that_were_there_for_all_of_it() -> None:
    shares, streams = TrainedShares(), [Stream(1, number, joined=True) for number in range(4)]
    streams[0].trained_steps = 10**6  # before
    shares.update(streams, 0.0)
    assert shares.quarters == ()
    for stream, steps in zip(streams, (10, 30, 30, 30), strict=True):
        stream.trained_steps += steps
    new = Stream(2, 0, joined=True, trained_steps=3)
    shares.update([*streams, new], 4.9)
    assert shares.quarters == ()
    shares.update([*streams, new], 5.0)
    assert shares.quarters == pytest.approx((0.1, 0.3, 0.3, 0.3))
    streams[0].joined = False
    shares.update([*streams, new], 15.0)
    assert shares.quarters == ()  # nothing was trained


def test_groups_that_finish_nothing_count_from_their_join_on() -> None:
    shares, streams = TrainedShares(), [Stream(1, number, joined=True) for number in range(4)]
    shares.update(streams, 0.0)
    for stream in streams[1:]:
        stream.trained_steps += 30
    shares.update(streams, 5.0)
    assert shares.quarters == pytest.approx((0.0, 1 / 3, 1 / 3, 1 / 3))


def test_windows_grow_from_seconds_to_a_minute() -> None:
    shares, streams = TrainedShares(), [Stream(1, number, joined=True) for number in range(2)]
    shares.update(streams, 0.0)
    ends: list[int] = []
    known = shares.quarters
    for second in range(1, 300):
        for stream in streams:
            stream.trained_steps += second if stream is streams[0] else 1
        shares.update(streams, float(second))
        if shares.quarters != known:
            ends.append(second)
            known = shares.quarters
    assert ends == [5, 15, 35, 75, 135, 195, 255]


def test_steps_count_when_they_are_trained() -> None:
    one, sampler = ready()
    send(one, sampler)
    given = tags(one)
    (stream,) = one.state.streams()
    assert stream.trained_steps == 0
    step(one, 50, given, 1)
    assert stream.trained_steps == 1
