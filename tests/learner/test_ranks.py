"""The facts of several ranks as one, whose exchange over a network is test_ddp's; and how they find
each other in a store that an earlier start has used."""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from itertools import permutations

import msgspec
import pytest
from torch._C._distributed_c10d import HashStore, Store, TCPStore
from torch.distributed.distributed_c10d import ProcessGroupGloo

from headrace.learner.batches.step_ages import UnrollAge
from headrace.learner.batches.unroll_ends import EpisodeEnds
from headrace.learner.ranks import Facts, Ranks, fresh_store

WORLD, TIMEOUT_S = 3, 20.0


def exchanged(monkeypatch: pytest.MonkeyPatch, *facts: Facts) -> Facts:
    """By the first of these ranks."""
    ranks = Ranks(timeout_s=5.0, cuda=False)
    others = [msgspec.msgpack.encode(one) for one in facts[1:]]
    monkeypatch.setattr(ranks, "world", len(facts))
    monkeypatch.setattr(ranks, "gather", lambda own: [own, *others])
    return ranks.exchange(facts[0])


def test_all_must_be_ready_and_any_may_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing, batch = Facts(False, stop=True), Facts(True, show=True)
    both = exchanged(monkeypatch, nothing, batch)
    assert not both.ready
    assert (both.stop, both.late, both.save, both.show) == (True, False, False, True)
    assert exchanged(monkeypatch, batch, batch, batch).ready


def test_steps_ages_and_episodes_are_those_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    first = EpisodeEnds(2**63 - 1, 0, 4, 16, ((3, -1.5, 20), (0, float("inf"), 7)))
    second = EpisodeEnds(7, 1, 4, 16, ())
    both = exchanged(
        monkeypatch,
        Facts(
            True,
            steps=30,
            ended=2,
            ages=(UnrollAge(-1, -1, 20), UnrollAge(2, 0, 10)),
            ends=(first,),
        ),
        Facts(
            True, steps=34, ages=tuple(UnrollAge(lag, 0, 1) for lag in range(100)), ends=(second,)
        ),
    )
    assert (both.steps, both.ended) == (64, 2)
    assert both.ages[:3] == ((-1, -1, 20), (2, 0, 10), (0, 0, 1))
    assert len(both.ages) == 102
    assert both.ends == (first, second)
    assert isinstance(both.ends[0], EpisodeEnds) and isinstance(both.ends[0].episodes[0], tuple)


def test_alone_the_facts_are_ones_own() -> None:
    own = Facts(True, steps=3)
    assert Ranks(timeout_s=5.0, cuda=False).exchange(own) is own


def started(store: Store, order: tuple[int, ...]) -> list[Store]:
    """The parts that the ranks found, each of which came when those before it had looked."""
    with ThreadPoolExecutor(WORLD) as pool:
        found: dict[int, Future[Store]] = {}
        for rank in order:
            found[rank] = pool.submit(fresh_store, store, rank, WORLD, TIMEOUT_S)
            time.sleep(0.03)  # longer than rank 0 waits between two looks; any order must do
        return [found[rank].result() for rank in range(WORLD)]


def test_each_start_meets_where_nobody_was() -> None:
    store = HashStore()
    for order in permutations(range(WORLD)):
        parts = started(store, order)
        assert not parts[0].check(["address"])
        parts[0].set("address", str(order))
        assert [part.get("address").decode() for part in parts] == [str(order)] * WORLD


def test_a_rank_that_is_early_does_not_call_processes_that_are_gone() -> None:
    """With gloo and a store as torchrun keeps it; without `fresh_store`: "Connection refused"."""
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def join(rank: int) -> ProcessGroupGloo:
        store: Store = TCPStore("127.0.0.1", server.port, is_master=False)
        store = fresh_store(store, rank, 2, TIMEOUT_S)
        return ProcessGroupGloo(store, rank, 2, timedelta(seconds=TIMEOUT_S))

    with ThreadPoolExecutor(2) as pool:
        for early in (0, 1, 0):
            first = pool.submit(join, early)
            time.sleep(0.2)  # what it finds, it takes
            second = pool.submit(join, 1 - early)
            groups = [first.result(), second.result()]
            del groups, first, second  # they die, and their addresses stay


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_stays_alone_says_so(rank: int) -> None:
    with pytest.raises(RuntimeError, match=r"(?i)rank 1 did not come within 0\.1 s|timeout"):
        fresh_store(HashStore(), rank, 2, 0.1)
