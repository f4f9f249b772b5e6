"""Credit that is not used: who gets none, what is asked back, and what counts no longer."""

import random
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from headrace.broker.ledger.ledger import BeyondCreditError, Ledger
from headrace.broker.ledger.records import Effects, Stream
from headrace.broker.peers.outbox import Outbox
from headrace.broker.protocol.messages import Limit, Outcome, Recall
from tests.broker.ledger.accounts import (
    BODY,
    LEASE,
    SIZE,
    Sampler,
    join,
    learn,
    ledger,
    recount,
    send,
)
from tests.broker.ledger.accounts import step as trained


def told(sampler: Sampler, effects: Effects) -> list[tuple[int, int]]:
    """What RECALL asks a sampler: (stream, number)."""
    sampler.hear(effects)
    return [one for inc, asked in effects.recalls if inc == sampler.inc for one in asked]


def turn(one: Ledger, now: float, *samplers: Sampler) -> Effects:
    for sampler in samplers:
        assert one.heard(sampler.inc, now)
    one.learner_heard(50, now)
    one.tick(now)
    return one.decide(now)


def stream(one: Ledger, inc: int, number: int = 0) -> Stream:
    return one.state.actors[inc].streams[number]


def test_who_acts_with_nothing_gets_none() -> None:
    one = ledger()
    sampler = Sampler(1, 1)
    one.actor_hello(1, "a", sampler.streams(), now=0.0, acting=-1)
    learn(one)
    sampler.hear(one.decide(0.0))
    assert sampler.limit == [0]
    one.ping(1, (), 0)  # its PING says so, if ACTING got lost
    sampler.hear(one.decide(0.0))
    assert sampler.limit == [4]


def test_joiners_without_weights_stop_nobody() -> None:
    one = ledger(batch=2, max_lag=2)
    fast = join(one, 1)
    learn(one)
    joiners = [Sampler(inc, 1) for inc in range(2, 18)]
    for joiner in joiners:
        one.actor_hello(joiner.inc, "joiner", joiner.streams(), now=0.0, acting=-1)
    version = run(one, fast, joiners, versions=20, beats=iter([0.01] * 100))
    assert version == 20
    assert all(joiner.limit == [0] for joiner in joiners)


def run(
    one: Ledger, fast: Sampler, others: list[Sampler], *, versions: int, beats: Iterator[float]
) -> int:
    """One sampler plays as fast as it may, the others only ping; the learner's version."""
    version, now, batch = 0, one.state.credit.now, one.state.credit.batch
    tags: list[int] = []
    for pause in beats:
        now += pause
        effects = turn(one, now, fast, *others)
        for sampler in others:
            told(sampler, effects)
        for number, asked in told(fast, effects):
            one.returned(fast.inc, [(number, asked, fast.next[number])])
        tags += [entry.tag for entry in effects.deliver]
        if fast.next[0] < fast.limit[0]:
            send(one, fast, 0, version)
        if len(tags) >= batch:
            version += 1
            trained(one, 50, tags[:batch], version)
            del tags[:batch]
            one.acts_with(fast.inc, version)
        recount(one)
        if version >= versions:
            break
    return version


@pytest.mark.parametrize("max_lag", [0, 2])
def test_those_with_old_weights_come_last(max_lag: int) -> None:
    """They stay behind for ever; the one that keeps up is not held back by them."""
    one = ledger(batch=2, max_lag=max_lag)
    old = [join(one, inc) for inc in range(2, 18)]
    fast = join(one, 1)
    learn(one, version=100)
    one.acts_with(1, 100)
    version, now, began = 100, 0.0, 0.0
    tags: list[int] = []
    for _ in range(4000):
        now += 0.1
        effects = turn(one, now, fast, *old)
        tags += [entry.tag for entry in effects.deliver]
        fast.hear(effects)
        for sampler in old:
            for number, asked in told(sampler, effects):
                one.returned(sampler.inc, [(number, asked, 0)])
        if fast.next[0] < fast.limit[0]:
            send(one, fast, 0, version)
        if len(tags) >= 2:
            version += 1
            trained(one, 50, tags[:2], version)
            del tags[:2]
            one.acts_with(1, version)
        if now < 60.0:  # until all have been tried once
            began = version
    assert version - began > 0.5 * (4000 - 600) / 2
    recount(one)


def test_what_is_not_used_comes_back_when_another_could_use_it() -> None:
    one = ledger(batch=2, max_lag=1)
    idle = join(one, 1)
    learn(one)
    idle.hear(one.decide(0.0))
    assert idle.limit == [4]
    assert not turn(one, 5.0, idle).recalls  # nobody else is there
    other = join(one, 2, now=5.0)
    ((number, asked),) = told(idle, turn(one, 5.1, idle, other))
    assert told(idle, turn(one, 5.2, idle, other)) == []  # once, and again with its next PING
    one.ping(1, ())
    effects = one.decide(5.3)
    assert told(idle, effects) == [(number, asked)]
    assert all(inc != 1 for inc, _ in effects.limits)  # it would take back what it gives
    one.returned(1, [(number, asked, 1)])  # one of them runs
    other.hear(one.decide(5.3))
    assert other.limit[0] >= 2
    assert one.state.credit.withdrawn == 3
    recount(one)


def test_one_that_plays_a_long_unroll_keeps_its_credit() -> None:
    """Minutes, while others are at it and wait for places: it is asked, and says that it runs."""
    one = ledger(batch=2, max_lag=1)
    slow, fast = join(one, 1), join(one, 2)
    learn(one)
    effects = one.decide(0.0)
    slow.hear(effects)
    fast.hear(effects)
    now, version, tags = 0.0, 0, list[int]()
    while now < 4 * LEASE:
        now += 0.1
        effects = turn(one, now, slow, fast)
        tags += [entry.tag for entry in effects.deliver]
        for sampler, started in ((slow, 1), (fast, fast.next[0])):
            for number, asked in told(sampler, effects):
                one.returned(sampler.inc, [(number, asked, started)])
        if fast.next[0] < fast.limit[0]:
            send(one, fast, 0, version)
        if len(tags) >= 2:
            version += 1
            trained(one, 50, tags[:2], version)
            del tags[:2]
            one.acts_with(2, version)
    assert stream(one, 1).running >= 1
    assert send(one, slow)
    assert version > 100


def test_answers_that_are_late_or_wrong_change_nothing() -> None:
    one = ledger(batch=2, max_lag=1)
    idle, other = join(one, 1), join(one, 2)
    learn(one)
    turn(one, 0.0, idle, other)
    third = join(one, 3)
    ((number, asked),) = told(idle, turn(one, 4.0, idle, other, third))
    before = stream(one, 1).limit
    for wrong in ((number, asked + 1, 0), (number, asked - 1, 0), (9, asked, 0)):
        one.returned(1, [wrong])
    assert stream(one, 1).limit == before
    one.returned(1, [(number, asked, 1 << 53)])  # more than it ever had
    assert stream(one, 1).limit == before
    one.returned(1, [(number, asked, 0)])  # not asked any more
    assert stream(one, 1).limit == before
    recount(one)


def test_credit_that_crosses_its_recall_is_counted_once() -> None:
    """LIMIT and RECALL are on one line, in order; no LIMIT is said again in between."""
    box = Outbox(inc=1, streams=1)
    box.on_limit(Limit(((0, 4, 0),)))
    box.start(0)
    (answer,) = box.on_recall(Recall(((0, 1),))).streams
    assert answer == (0, 1, 1)
    assert not box.may_start(0, 0) or box._streams[0].started < box._streams[0].limit
    assert box._streams[0].limit == 1
    box.on_limit(Limit(((0, 2, 0),)))
    assert box._streams[0].limit == 2


def test_a_hoarder_keeps_nothing() -> None:
    """It pings, says that all runs, and never delivers: after some leases its places are free. One
    that comes late is taken all the same."""
    one = ledger(batch=2, max_lag=2)
    fast = join(one, 1)
    learn(one)
    assert run(one, fast, [], versions=5, beats=iter([0.1] * 100)) == 5
    hoarders = [join(one, inc, 4, one.state.credit.now) for inc in range(2, 6)]
    for hoarder in hoarders:
        one.acts_with(hoarder.inc, 1 << 30)
    now, version, tags, free_at = one.state.credit.now, 5, list[int](), 0.0
    end = now + 40 * LEASE
    while now < end:
        now += 0.1
        effects = turn(one, now, fast, *hoarders)
        tags += [entry.tag for entry in effects.deliver]
        fast.hear(effects)
        for hoarder in hoarders:
            for number, asked in told(hoarder, effects):
                one.returned(hoarder.inc, [(number, asked, hoarder.limit[number])])
        if fast.next[0] < fast.limit[0]:
            send(one, fast, 0, version)
        if len(tags) >= 2:
            version += 1
            free_at = free_at or now
            trained(one, 50, tags[:2], version)
            del tags[:2]
            one.acts_with(1, version)
    assert version > 0.7 * 40 * LEASE / 0.1 / 2
    late = next(h for h in hoarders if max(h.limit))
    assert send(one, late, late.limit.index(max(late.limit)), version)
    recount(one)


def test_without_anything_to_compare_long_unrolls_are_waited_for() -> None:
    """All of a run take four minutes: none is given up before it was seen how long they take."""
    one = ledger(batch=2, max_lag=1)
    samplers = [join(one, inc) for inc in range(1, 9)]
    learn(one)
    now, most = 0.0, 0
    started: dict[int, float] = {}
    version, tags = 0, list[int]()
    while now < 2000.0:
        now += 1.0
        effects = turn(one, now, *samplers)
        tags += [entry.tag for entry in effects.deliver]
        for sampler in samplers:
            for number, asked in told(sampler, effects):
                runs = sampler.next[0] + (sampler.inc in started)
                sampler.limit[0] = runs
                one.returned(sampler.inc, [(number, asked, runs)])
            if sampler.inc in started:
                if now - started[sampler.inc] > 240.0:
                    del started[sampler.inc]
                    send(one, sampler, 0, version)
            elif sampler.next[0] < sampler.limit[0]:
                started[sampler.inc] = now
        most = max(most, len(started) + one.state.credit.present)
        if len(tags) >= 2:
            version += 1
            trained(one, 50, tags[:2], version)
            del tags[:2]
            for sampler in samplers:
                one.acts_with(sampler.inc, version)
    assert version >= 10
    assert most <= 4  # never beyond the window: nothing was given up as overdue
    assert one.state.credit.overdue == 0


@pytest.mark.slow
def test_who_comes_and_goes_leaves_nothing_behind() -> None:
    one = ledger(batch=2, max_lag=0)
    learn(one)
    for inc in range(1, 3000):
        join(one, inc, 8)
        one.decide(0.0)
        one.actor_bye(inc, ())
    one.tick(1.0)
    credit = one.state.credit
    assert credit.streams == credit.running == 0
    assert max(len(waiting) for waiting in (*credit._prompt, *credit._late)) <= 1024
    recount(one)


def claims(number: int) -> list[Any]:
    """Every one of so many unrolls open, in as few streams as may be."""
    return [(n, 0, 4000, 4000, ((0, 4000),)) for n in range(number // 4000)]


@pytest.mark.slow
def test_claims_weigh_no_more_than_could_have_been_granted() -> None:
    one = ledger(batch=2, max_lag=2)
    fast = join(one, 1)
    learn(one)
    assert run(one, fast, [], versions=5, beats=iter([0.1] * 400)) == 5
    one.actor_hello(9, "liar", claims(60_000), now=one.state.credit.now)
    assert one.state.credit.running <= 2 * one.state.credit.window
    assert one.state.credit.budget() >= -one.state.credit.window
    recount(one)
    # A broker that is no new one owes nobody what it did not grant.
    old = ledger(batch=2, max_lag=2)
    fast = join(old, 1)
    learn(old)
    run(old, fast, [], versions=200, beats=iter([0.1] * 400))
    before = old.state.credit.running
    old.actor_hello(9, "liar", claims(60_000), now=old.state.credit.now)
    assert old.state.credit.running == before
    liar = Sampler(9, 15)
    version = old.state.credit.version
    tags: list[int] = []
    for _ in range(400):
        effects = turn(old, old.state.credit.now + 0.1, fast, liar)
        fast.hear(effects)
        tags += [entry.tag for entry in effects.deliver]
        old.ping(9, [(0, 0, 4000)])
        if fast.next[0] < fast.limit[0]:
            send(old, fast, 0, version)
        if len(tags) >= 2:
            version += 1
            trained(old, 50, tags[:2], version)
            del tags[:2]
            old.acts_with(1, version)
    assert version > 300
    recount(old)


def test_claims_that_are_true_come_in_as_credit_allows() -> None:
    """A sampler back from a broker of long ago: nothing of it is refused for good."""
    one = ledger(batch=2, max_lag=1)
    learn(one)
    one.learner_heard(50, 100.0)
    one.tick(100.0)
    sampler = Sampler(1, 1)
    sampler.limit = [9]
    made = [sampler.make(0) for _ in range(9)]
    one.actor_hello(1, "late", sampler.streams(), now=100.0)
    assert stream(one, 1).unbacked == 9
    with pytest.raises(BeyondCreditError):
        one.unroll(made[0], BODY, SIZE)
    now, version = 100.0, 0
    while any(key in sampler.open for key in [(0, seq) for seq in range(8)]):
        now += 1.0
        assert now < 150.0
        assert one.heard(1, now)
        effects = turn(one, now, sampler)
        sampler.hear(effects)
        for number, lo, hi in one.ping(1, sampler.ranges()):
            for seq in range(lo, hi):
                one.unroll(sampler.open[number, seq], BODY, SIZE)
        tags = [entry.tag for entry in one.decide(now).deliver + effects.deliver]
        for tag in tags:
            one.done(50, ((tag, tag + 1),))
        version = sum(o is Outcome.TRAINED for o in sampler.ends.values()) // 2
        one.learner_heard(50, now, version=version)
        recount(one)
    assert all(outcome is Outcome.TRAINED for outcome in sampler.ends.values())


def test_a_revived_sampler_brings_what_it_was_granted() -> None:
    """Not what it says: what it had been granted before it was thought dead."""
    one = ledger(batch=2, max_lag=1)
    sampler = join(one, 1)
    learn(one)
    sampler.hear(one.decide(0.0))
    made = [sampler.make(0) for _ in range(4)]
    one.learner_heard(50, 20.0)
    one.tick(20.0)
    one.tick(50.0)
    learn(one, now=50.0)
    one.actor_hello(1, "again", sampler.streams(), now=50.0)
    assert (stream(one, 1).running, stream(one, 1).unbacked) == (4, 0)
    for unroll in made:
        assert one.unroll(unroll, BODY, SIZE)
    recount(one)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_it_always_moves(seed: int) -> None:
    """Samplers fetch weights quickly or slowly, play long or short unrolls, fall asleep with their
    credit, or only ping and lie; as long as one of them is honest the run goes on."""
    rng = random.Random(seed)
    batch, max_lag = rng.choice((1, 2, 4)), rng.choice((0, 0, 1, 3))
    one = ledger(batch=batch, max_lag=max_lag)
    learn(one)
    kinds = [
        "honest",
        *rng.choices(("honest", "slow line", "hoarder", "idle"), k=rng.randint(1, 9)),
    ]
    world = [Player(one, inc, kind, rng) for inc, kind in zip(count(1), kinds, strict=False)]
    version, tags, moved, longest = 0, list[int](), 0.0, 0.0
    now = 0.0
    for _ in range(12_000):
        now += 0.1
        effects = turn(one, now, *(player.sampler for player in world))
        tags += [entry.tag for entry in effects.deliver]
        for player in world:
            player.turn(effects, version, now)
        if len(tags) >= batch:
            version += 1
            trained(one, 50, tags[:batch], version)
            del tags[:batch]
            longest, moved = max(longest, now - moved), now
    recount(one)
    longest = max(longest, now - moved)
    assert one.state.credit.budget() >= -one.state.credit.window
    # Until there is an unroll to compare with. Later it is the length of a turn.
    assert longest < 60 * LEASE, f"{kinds}: stood still for {longest:.0f} s"
    assert version > 100, f"{kinds}: {version} versions"


class Player:
    """A sampler of some kind."""

    def __init__(self, one: Ledger, inc: int, kind: str, rng: random.Random) -> None:
        self.one, self.kind, self.rng = one, kind, rng
        self.sampler = Sampler(inc, rng.randint(1, 3))
        one.actor_hello(inc, kind, self.sampler.streams(), now=0.0, acting=-1)
        self.fetch_s = rng.uniform(5.0, 60.0) if kind == "slow line" else rng.uniform(0.0, 1.0)
        self.unroll_s = rng.uniform(0.1, 3.0)
        self.acting, self.fetching, self.whole_at = -1, -1, 0.0
        self.busy: dict[int, float] = {}

    def turn(self, effects: Effects, version: int, now: float) -> None:
        one, own = self.one, self.sampler
        for number, asked in told(own, effects):
            runs = own.next[number] + (number in self.busy)
            lie = self.kind == "hoarder"
            if not lie:
                own.limit[number] = runs
            one.returned(own.inc, [(number, asked, own.limit[number] if lie else runs)])
        if self.fetching >= 0 and now >= self.whole_at:
            self.acting, self.fetching = self.fetching, -1
            one.acts_with(own.inc, self.acting)
        if self.fetching < 0 and self.acting < version:
            self.fetching, self.whole_at = version, now + self.fetch_s
        if self.kind in ("hoarder", "idle"):
            return
        for number, here in enumerate(own.limit):
            floor = one.state.actors[own.inc].streams[number].floor_version
            if number in self.busy:
                if now >= self.busy[number]:
                    del self.busy[number]
                    send(one, own, number, self.acting)
            elif own.next[number] < here and self.acting >= floor:
                self.busy[number] = now + self.unroll_s
