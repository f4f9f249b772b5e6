"""Checks how the credit of a run is shared by its brokers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.peers.shares import shares

STREAMS = st.lists(st.none() | st.integers(0, 2000), min_size=1, max_size=9)


@pytest.mark.parametrize(
    ("streams", "batch", "world", "wanted"),
    [
        ([4], 6, 1, [6]),
        ([4, 4], 6, 1, [3, 3]),
        ([3, 1], 8, 1, [6, 2]),
        ([900, 1], 4, 1, [3, 1]),  # nobody waits for ever
        ([5, 0], 4, 1, [4, 0]),  # what nobody would use stops no step
        ([0, 0], 5, 1, [3, 2]),  # nobody plays yet
        ([5, None], 4, 1, [4, 0]),
        ([None, None], 4, 1, [0, 0]),
        ([1, 1], 8, 4, [4, 4]),
        ([1, 1, 1], 8, 4, [4, 4, 0]),  # each of four ranks has a part of every broker's
        ([7, 5], 12, 4, [8, 4]),
    ],
)
def test_a_share_follows_the_streams(
    streams: list[int | None], batch: int, world: int, wanted: list[int]
) -> None:
    assert shares(streams, batch=batch, world=world) == wanted


@given(streams=STREAMS, units=st.integers(1, 64), world=st.integers(1, 8))
def test_nothing_is_lost_and_nobody_forgotten(
    streams: list[int | None], units: int, world: int
) -> None:
    found = shares(streams, batch=units * world, world=world)
    play = [count or 0 for count in streams]
    answer = any(count is not None for count in streams)
    assert sum(found) == (units * world if answer else 0)
    assert all(share % world == 0 for share in found)
    assert all(share == 0 for share, count in zip(found, streams, strict=True) if count is None)
    if any(play):
        assert all(share == 0 for share, count in zip(found, play, strict=True) if not count)
        if units >= sum(map(bool, play)):
            assert all(share for share, count in zip(found, play, strict=True) if count)
        # One each, and what is left as the streams have it, to less than a unit.
        left = units - sum(map(bool, play))
        for share, count in zip(found, play, strict=True) if left >= 0 else ():
            exact = bool(count) + left * count / sum(play)
            assert abs(share / world - exact) < 1
