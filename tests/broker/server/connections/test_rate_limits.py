"""The broker's rates and sizes, without a broker."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.config import BrokerConfig
from headrace.broker.protocol import messages
from headrace.broker.server.connections.rate_limits import (
    ConnectionBudget,
    RateLimits,
    cost_in_messages,
)

MB = 1 << 20


def door(**limits: float) -> RateLimits:
    return RateLimits(BrokerConfig(**limits))  # type: ignore[arg-type]


def taken(one: RateLimits, budget: ConnectionBudget, size: int, times: int, now: float) -> int:
    return sum(one.takes_message(budget, size, now) for _ in range(times))


def test_a_burst_of_a_second_and_then_the_rate() -> None:
    one, budget = door(peer_messages_s=100.0), ConnectionBudget()
    assert taken(one, budget, 1, 1000, 50.0) == pytest.approx(100, abs=2)
    assert taken(one, budget, 1, 1000, 50.0) == 0
    assert taken(one, budget, 1, 1000, 50.1) == pytest.approx(10, abs=2)
    assert taken(one, budget, 1, 1000, 1000.0) == pytest.approx(100, abs=2)  # it saves up no more


def test_bytes_count_by_themselves_and_one_large_message_passes() -> None:
    one, budget = door(peer_mb_s=10.0), ConnectionBudget()
    assert one.takes_message(budget, 64 * MB, 0.0)  # else it never could
    assert not one.takes_message(budget, 1, 5.0)
    assert one.takes_message(budget, 1, 5.5)


def test_what_is_refused_costs_nothing() -> None:
    one, greedy, other = (
        door(peer_messages_s=10.0, messages_s=30.0),
        ConnectionBudget(),
        ConnectionBudget(),
    )
    taken(one, greedy, 1, 10_000, 0.0)
    assert taken(one, other, 1, 100, 0.0) == pytest.approx(10, abs=2)


def test_all_peers_share_what_all_may_use() -> None:
    one = door(messages_s=50.0, mb_s=1.0)
    assert sum(taken(one, ConnectionBudget(), 1, 10, 0.0) for _ in range(100)) == pytest.approx(
        50, abs=2
    )
    assert taken(door(mb_s=1.0), ConnectionBudget(), MB // 10, 100, 0.0) == pytest.approx(10, abs=2)


def test_an_answer_is_charged_to_who_asked() -> None:
    one, budget = door(peer_mb_s=10.0), ConnectionBudget()
    assert one.takes_message(budget, 30, 0.0)
    one.charge(budget, nbytes=100 * MB)
    assert not one.takes_message(budget, 30, 8.0)
    assert one.takes_message(budget, 30, 9.1)
    one.charge(budget, messages=10**9)
    assert not one.takes_message(budget, 30, 20.0)


@given(
    st.lists(st.tuples(st.floats(0, 3), st.integers(0, 1000)), max_size=200), st.floats(1.0, 100.0)
)
def test_never_more_than_the_rate_and_a_burst(steps: list[tuple[float, int]], rate: float) -> None:
    one, budget, passed = door(peer_messages_s=rate), ConnectionBudget(), []
    for now in itertools.accumulate(pause for pause, _ in steps):
        if one.takes_message(budget, 1, 7.0 + now):
            passed.append(now)
    for at, begin in enumerate(passed):
        for count, end in enumerate(passed[at:], 1):
            assert count <= rate * (end - begin + 1.0) + 2


def test_hello_and_what_strangers_are_told() -> None:
    one, budget = door(hello_s=2.0), ConnectionBudget()
    assert sum(one.takes_hello(budget, 9.0) for _ in range(100)) == 10
    assert [one.takes_hello(budget, 9.0 + tenth / 10) for tenth in range(1, 11)].count(True) == 2
    assert one.may_answer(budget, 19.0)
    assert not one.may_answer(budget, 19.4)
    assert one.may_answer(budget, 19.5)


def test_of_all_strangers_together_so_many_are_answered() -> None:
    one = door(peers=200)
    answered = sum(one.may_answer(one.unknown_budget(b"%d" % n), 0.0) for n in range(10_000))
    assert answered == pytest.approx(200, abs=2)


def test_the_table_of_strangers_is_bounded_and_forgets_the_first() -> None:
    one = door()
    first = one.unknown_budget(b"first")
    assert one.unknown_budget(b"first") is first
    for n in range(5000):
        one.unknown_budget(b"%d" % n)
    assert one.unknown_budget(b"first") is not first
    kept = one.unknown_budget(b"kept")
    one.forget_unknown(b"kept")
    assert one.unknown_budget(b"kept") is not kept


def test_sizes() -> None:
    one = door(streams=10)
    unroll, hello = messages.Unroll(1, 0, 0, 0, 0, 0, 1, 1), messages.Hello("actor", "a", 1)
    assert one.has_honest_size(unroll, [b""] * 9, 1 << 30)  # nobody has said yet
    one.set_unroll_size(1 << 20)
    assert one.has_honest_size(
        unroll, [b""] * 9, (1 << 20) + (1 << 20) // 255 + 9 * 16 + messages.MAX_HEADER
    )
    assert not one.has_honest_size(unroll, [b""] * 9, 2 << 20)
    assert one.has_honest_size(hello, [b""], 70_000)
    assert not one.has_honest_size(hello, [b""], 100_000)
    assert not one.has_honest_size(hello, [b"", b""], 100)
    assert not one.has_honest_size(messages.Hello("watcher", "w", 1), [b""], 70_000)
    assert one.has_honest_size(messages.Hello("learner", "l", 1), [b""], 10 << 20)
    assert one.has_honest_size(messages.Chunk(1, 0), [b""], 64 << 20)
    assert not one.has_honest_size(messages.Watch(), [b""], 20)


def test_room() -> None:
    one = door(peers=2, streams=3)
    assert one.no_room_reason(1, known=False, streams=3) == ""
    assert one.no_room_reason(2, known=True, streams=3) == ""
    assert "broker.peers" in one.no_room_reason(2, known=False, streams=3)
    assert one.no_room_reason(15, known=False, streams=3, behind_node=True) == ""
    assert "behind nodes" in one.no_room_reason(16, known=False, streams=3, behind_node=True)
    assert "broker.streams" in one.no_room_reason(1, known=False, streams=4)


def test_lines_of_the_log() -> None:
    one = door()
    assert sum(one.may_log(0.0) for _ in range(10_000)) == pytest.approx(200, abs=2)
    assert sum(one.may_log(1.0) for _ in range(10_000)) == pytest.approx(20, abs=2)


def test_looking_is_work() -> None:
    assert cost_in_messages([]) == 0
    assert cost_in_messages([(0, 0, 8), (1, 5, 13), (2, 9, 1)]) == 2
    assert cost_in_messages([(0, 0, 1 << 53)] * 64) == 64 * 4096 // 8
