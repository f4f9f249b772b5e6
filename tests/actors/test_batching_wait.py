"""The wait for more environments: only when short of time, never longer than it is worth."""

import numpy as np
import pytest

from headrace.actors.batching_wait import BatchingWait


def told(gather: BatchingWait, *, fixed: float, each: float, busy: float) -> None:
    """Calls of a network with these costs, by a process so busy."""
    rng = np.random.default_rng(0)
    for _ in range(500):
        rows = int(rng.integers(1, 9))
        seconds = fixed + each * rows
        elapsed = seconds / max(busy, 0.01)
        gather.record_call(rows=rows, seconds=seconds, waited=elapsed * (1 - busy), elapsed=elapsed)


def test_the_fixed_cost_is_told_apart_from_the_cost_of_a_row() -> None:
    gather = BatchingWait(limit_s=1.0)
    told(gather, fixed=0.004, each=0.001, busy=0.5)
    assert gather.fixed_s == pytest.approx(0.004, rel=0.02)


def test_a_process_with_time_to_spare_never_waits() -> None:
    gather = BatchingWait(limit_s=1.0)
    told(gather, fixed=0.02, each=0.001, busy=0.45)
    assert gather.wait_s(running=8) == 0.0


def test_a_process_without_time_waits_as_long_as_a_call_costs_anyway() -> None:
    gather = BatchingWait(limit_s=1.0)
    told(gather, fixed=0.004, each=0.001, busy=1.0)
    assert gather.wait_s(running=8) == pytest.approx(0.004, rel=0.02)


def test_the_wait_has_a_limit() -> None:
    gather = BatchingWait(limit_s=0.002)
    told(gather, fixed=0.05, each=0.001, busy=1.0)
    assert gather.wait_s(running=8) == pytest.approx(0.002)


def test_no_wait_when_nobody_is_to_come_or_it_is_not_worth_a_timer() -> None:
    gather = BatchingWait(limit_s=1.0)
    assert gather.wait_s(running=8) == 0.0
    told(gather, fixed=0.004, each=0.001, busy=1.0)
    assert gather.wait_s(running=0) == 0.0
    cheap = BatchingWait(limit_s=1.0)
    told(cheap, fixed=0.0001, each=0.0001, busy=1.0)
    assert cheap.wait_s(running=8) == 0.0


def test_calls_of_one_size_tell_nothing() -> None:
    gather = BatchingWait(limit_s=1.0)
    for _ in range(100):
        gather.record_call(rows=16, seconds=0.01, waited=0.0, elapsed=0.01)
    assert gather.wait_s(running=8) == 0.0
