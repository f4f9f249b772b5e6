"""What a line does to a packet, decided without a network."""

from random import Random

import pytest

from tests.system.network.line import Condition, Way


def way(**what: float) -> Way:
    made = Way(Random(1))
    made.condition = Condition(**what)
    return made


def test_nothing_is_wrong_with_a_new_line() -> None:
    assert list(Way(Random(1)).out(1500, 7.0)) == [7.0]


def test_a_delay_moves_every_packet() -> None:
    assert list(way(delay_s=0.25).out(1500, 7.0)) == [7.25]


def test_a_cut_line_carries_nothing() -> None:
    line = way(loss=1.0)
    assert [list(line.out(1500, 7.0)) for _ in range(100)] == [[]] * 100


def test_packets_wait_for_each_other_on_a_slow_line_and_do_not_wait_for_ever() -> None:
    """64 kbit/s carry 125 bytes in 1/64 s; 0.4 s of them wait, the others are dropped."""
    line = way(kbit_s=64.0)
    out = [list(line.out(125, 0.0)) for _ in range(100)]
    assert out == [[(n + 1) / 64] for n in range(26)] + [[]] * 74
    assert list(line.out(125, 1.0)) == [1 + 1 / 64]


@pytest.mark.parametrize("what", ["loss", "twice", "overtaken"])
def test_a_share_of_the_packets_fares_so(what: str) -> None:
    line = way(**{what: 0.2})
    out = [list(line.out(1500, 0.0)) for _ in range(10_000)]
    fares = {"loss": [], "twice": [0.0, 0.0], "overtaken": [0.02]}[what]
    assert 1_800 < out.count(fares) < 2_200
    assert out.count(fares) + out.count([0.0]) == 10_000
