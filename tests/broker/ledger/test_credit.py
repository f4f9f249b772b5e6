"""Pacing: who may start how much, and when."""

import json
from pathlib import Path

import pytest

from headrace.broker.ledger.pacing import Credit
from headrace.broker.ledger.records import Effects, Stream
from headrace.broker.protocol.messages import Outcome
from tests.broker.ledger.accounts import SIZE, Sampler, join, learn, ledger, recount, send, step

REFERENCE = Path(__file__).parents[2] / "reference" / "values.json"


def case(index: int) -> dict[str, int]:
    cases: list[dict[str, int]] = json.loads(REFERENCE.read_text())["areal_staleness_capacity"][
        "cases"
    ]
    return cases[index]


@pytest.mark.parametrize("index", range(8))
def test_capacity_as_another_system_counts_it(index: int) -> None:
    """Theirs is also bounded by C places at once; ours by what streams may hold."""
    want = case(index)
    credit = Credit(batch=want["B"], max_lag=want["K"])
    credit.version, credit.running = want["version"], want["running"]
    credit.present = want["accepted"] - want["version"] * want["B"]
    assert min(max(1, want["C"]) - want["running"], credit.budget()) == want["cap"]


def granted(samplers: list[Sampler], effects: Effects) -> list[tuple[Sampler, int, int]]:
    """(sampler, stream, floor version) once for every credit that these effects bring."""
    before = {(s.inc, n): limit for s in samplers for n, limit in enumerate(s.limit)}
    by_inc = {s.inc: s for s in samplers}
    for sampler in samplers:
        sampler.hear(effects)
    return [
        (by_inc[inc], stream, floor)
        for inc, grants in effects.limits
        for stream, limit, floor in grants
        for _ in range(limit - before[inc, stream])
    ]


def test_lag_zero_is_lock_step() -> None:
    one = ledger(batch=6, max_lag=0)
    samplers = [join(one, inc, 2) for inc in (1, 2, 3, 4)]
    learn(one)
    for version in range(20):
        places = granted(samplers, one.decide(0.0))
        assert len(places) == 6 and {floor for _, _, floor in places} == {version}
        for sampler, stream, _ in places:
            send(one, sampler, stream, version)
        effects = one.decide(0.0)
        assert len(effects.deliver) == 6 and not effects.limits
        step(one, 50, [entry.tag for entry in effects.deliver], version + 1)
        recount(one)


@pytest.mark.parametrize("max_lag", [0, 1, 3])
def test_no_unroll_is_older_than_the_lag_when_all_run_alike(max_lag: int) -> None:
    one, version = ledger(batch=4, max_lag=max_lag), 0
    samplers = [join(one, inc, 3) for inc in range(1, 8)]
    learn(one, want=10**6)
    running: list[tuple[Sampler, int]] = []
    leased: list[tuple[int, int]] = []  # tag, version acted with
    worst = 0
    for _ in range(300):
        effects = one.decide(0.0)
        leased += [(e.tag, e.unroll.version_min) for e in effects.deliver]
        places = granted(samplers, effects)
        assert all(floor <= version for _, _, floor in places)
        running += [(sampler, stream) for sampler, stream, _ in places]
        for sampler, stream in running[:3]:  # first granted, first done
            # The oldest weights that the credit allows.
            floor = one.state.actors[sampler.inc].streams[stream].floor_version
            send(one, sampler, stream, max(0, floor))
        del running[:3]
        if len(leased) >= 4:
            worst = max(worst, *(version - acted for _, acted in leased[:4]))
            version += 1
            step(one, 50, [tag for tag, _ in leased[:4]], version)
            del leased[:4]
    assert version >= 100 and worst <= max_lag


def served(speeds: list[int], turns: int) -> list[int]:
    """Unrolls per stream, when stream n needs speeds[n] turns for one."""
    one = ledger(batch=8, max_lag=1, queue_bytes=10**9)
    samplers = [join(one, inc) for inc in range(1, len(speeds) + 1)]
    learn(one, want=10**9)
    busy, version, tags = [0] * len(speeds), 0, list[int]()
    for _ in range(turns):
        effects = one.decide(0.0)
        tags += [entry.tag for entry in effects.deliver]
        for n, sampler in enumerate(samplers):
            sampler.hear(effects)
            if busy[n] == 0 and sampler.next[0] < sampler.limit[0]:
                busy[n] = speeds[n] + 1
            if busy[n]:
                busy[n] -= 1
                if busy[n] == 0:
                    send(one, sampler, 0, version)
        while len(tags) >= 8:
            version += 1
            step(one, 50, tags[:8], version)
            del tags[:8]
    return [sampler.next[0] for sampler in samplers]


def test_equal_streams_get_equal_shares() -> None:
    counts = served([3] * 100, 1500)
    jain = sum(counts) ** 2 / (len(counts) * sum(n * n for n in counts))
    assert sum(counts) > 1000 and jain >= 0.95


def test_the_slow_are_not_starved_and_the_fast_not_held_back() -> None:
    """Thirty times slower, and still nearly the pace that its own speed allows."""
    counts = served([1] * 10 + [30] * 10, 3000)
    assert min(counts[10:]) > 0.5 * 3000 / 31
    assert max(counts[10:]) <= min(counts[:10])


def test_credit_left_unused_returns_when_its_stream_leaves() -> None:
    one = ledger(batch=1, max_lag=0)
    first, second = join(one, 1), join(one, 2)
    learn(one)
    first.hear(one.decide(0.0))
    assert (first.limit, one.state.credit.budget()) == ([1], 0)
    one.actor_bye(1, ())
    second.hear(one.decide(0.0))
    assert second.limit == [1]


def test_memory_bounds_credit() -> None:
    one = ledger(batch=100, max_lag=9, queue_bytes=7 * SIZE)
    one.state.unroll_bytes = SIZE
    samplers = [join(one, inc, 4) for inc in range(1, 9)]
    learn(one, want=0)
    for _ in range(3):
        for sampler, stream, _ in granted(samplers, one.decide(0.0)):
            assert send(one, sampler, stream)
    assert one.state.nbytes == 7 * SIZE


def test_a_grant_after_more_arrived_than_was_granted() -> None:
    credit, stream = Credit(batch=4, max_lag=0), Stream(actor=1, number=0, acting=0)
    credit.join(stream, arrived=0, started=0)
    credit.arrived(stream)  # adopted on a learner's word
    assert credit.grant(1) == [stream] and credit.running == stream.running == 1


def test_what_bounds_how_far_sampling_is_ahead_does_not_bound_the_age_of_a_slow_unroll() -> None:
    """A third of the streams take 5, 9 or 72 versions for an unroll, at K = 2 and a hard bound of
    10: sampling is never more than three batches ahead, and all that was played is trained."""
    one = ledger(batch=4, max_lag=2, max_lag_hard=10)
    samplers = [join(one, inc) for inc in range(1, 13)]
    slowness = {1: 5, 2: 9, 3: 72}
    learn(one)
    ages: set[int] = set()
    due: list[tuple[int, Sampler, int, int]] = []  # version it is finished at, first acted with
    tags: list[int] = []
    for _ in range(400):
        version = one.state.credit.version
        effects = one.decide(0.0)
        for sampler, stream, floor in granted(samplers, effects):
            assert floor <= version
            due.append((version + slowness.get(sampler.inc, 0), sampler, stream, version))
        tags += [entry.tag for entry in effects.deliver]
        ages |= {version - entry.unroll.version_min for entry in effects.deliver}
        for each in [each for each in due if each[0] <= version]:
            due.remove(each)
            # Its last step was chosen one of its four steps ago.
            took = version - each[3]
            send(one, each[1], each[2], each[3], newest=version - took // 4)
        assert one.state.credit.ahead <= 3
        if len(tags) >= 4:
            step(one, 50, tags[:4], version + 1)
            del tags[:4]
        recount(one)
    assert max(ages) >= 72
    assert one.state.outcomes[Outcome.STALE] == 0
    assert one.state.credit.version > 50
