"""Checks the shares that each quarter has of a total."""

import pytest

from headrace.broker.quarter_shares import quarter_shares


def test_equal_ones_supply_a_quarter_each() -> None:
    assert quarter_shares([7] * 8) == (0.25, 0.25, 0.25, 0.25)
    assert quarter_shares([7] * 6) == (0.25, 0.25, 0.25, 0.25)


def test_the_slow_quarter_is_seen() -> None:
    assert quarter_shares([33, 1, 33, 33]) == pytest.approx((0.01, 0.33, 0.33, 0.33))
    assert quarter_shares([1, 3]) == pytest.approx((0.125, 0.125, 0.375, 0.375))


@pytest.mark.parametrize("counts", [[], [5], [0, 0]])
def test_there_is_nothing_to_compare(counts: list[int]) -> None:
    assert quarter_shares(counts) == ()
