"""A broker that is larger than all it holds ends; one that is as large as it may be does not."""

import mmap

import pytest

from headrace.broker.ledger.records import Actor, Stream
from headrace.broker.protocol.messages import Outcome
from headrace.broker.server import memory_guard
from headrace.broker.server.memory_guard import MemoryExceededError, MemoryGuard

MIB = 1 << 20


class Process:
    """Stands for the kernel's word on our size, and for the allocator."""

    def __init__(self, held: int) -> None:
        self.held = held
        self.freed = 0  # not in use, and not given back yet
        self.trims = 0

    def resident(self) -> int:
        return self.held + self.freed

    def trim(self) -> None:
        self.freed = 0
        self.trims += 1


def watch(process: Process, *, queue_mb: int = 512) -> MemoryGuard:
    return MemoryGuard(queue_bytes=queue_mb * MIB, resident=process.resident, trim=process.trim)


def test_all_that_an_honest_run_may_hold_fits() -> None:
    process = Process(50 * MIB)
    own = watch(process)
    process.held += 512 * MIB + 1200 * MIB + 1000 * 184_000
    own.check(held=1200 * MIB, actors={}, peers=1000)
    assert process.trims == 0


def test_what_was_freed_is_given_back_before_anybody_ends() -> None:
    process = Process(50 * MIB)
    own = watch(process)
    process.held, process.freed = 60 * MIB, 4000 * MIB
    own.check(held=0, actors={}, peers=0)
    assert (process.trims, process.freed) == (1, 0)


def test_what_nobody_can_account_for_ends_it_with_one_line() -> None:
    process = Process(50 * MIB)
    own = watch(process, queue_mb=8)
    limit = own.limit(held=3 * MIB, peers=4)
    process.held = limit
    own.check(held=3 * MIB, actors={}, peers=4)
    process.held += 1
    with pytest.raises(MemoryExceededError, match=r"^322 MB are in memory .* nothing is lost") as e:
        own.check(held=3 * MIB, actors={}, peers=4)
    assert "\n" not in str(e.value)


def test_what_is_remembered_of_samplers_counts_too() -> None:
    """It is only looked at when the rest does not explain it: it is a look at every stream."""
    streams = {n: Stream(1, n, settled={5: Outcome.TRAINED}) for n in range(1000)}
    actors = {1: Actor(1, "a", streams=streams)}
    process = Process(50 * MIB)
    own = watch(process)
    process.held = own.limit(held=0, peers=0) + 400_000
    own.check(held=0, actors=actors, peers=0)
    with pytest.raises(MemoryExceededError):
        own.check(held=0, actors={}, peers=0)


def test_a_system_that_does_not_say_is_left_alone() -> None:
    process = Process(0)
    watch(process).check(held=0, actors={}, peers=0)


def test_the_kernels_word() -> None:
    before = memory_guard.resident()
    if not before:
        pytest.skip("no /proc here")
    with mmap.mmap(-1, 64 * MIB) as block:
        block.write(b"x" * (64 * MIB))
        assert 60 * MIB < memory_guard.resident() - before < 80 * MIB
    memory_guard.trim()
    assert memory_guard.resident() - before < 10 * MIB
