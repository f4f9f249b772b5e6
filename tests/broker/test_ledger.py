"""The broker's decisions: a machine that tries everything, and the cases worth a name."""

import itertools
import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker.book import Book
from broker.ledger import BeyondCreditError, Ledger
from broker.pacing import Credit
from broker.records import Effects, Stream
from broker.wire import Outcome, Unroll, ranges

LEASE = 10.0
SIZE = 10
BODY = (b"x" * SIZE,)
REFERENCE = Path(__file__).parents[1] / "reference" / "values.json"


def ledger(**other: int) -> Ledger:
    settings = {
        "batch": 4, "max_lag": 1, "max_lag_hard": 50, "queue_bytes": 10**6, "attempts": 3,
        "first_tag": 1000,
    }  # fmt: skip
    return Ledger(Book(**{**settings, **other}), lease_s=LEASE)


def recount(one: Ledger) -> None:
    """Every running total against the records it is about."""
    book = one.book
    streams = [stream for actor in book.actors.values() for stream in actor.streams.values()]
    here = [entry for stream in streams for entry in stream.present.values()]
    leased = [e for session in book.leases.sessions.values() for e in session.leases.values()]
    queued = {id(entry) for entry in book.queue if not entry.gone and entry.tag < 0}
    assert one.unaccounted() == 0
    assert book.entries == len(here) == len(queued) + len(leased) == book.credit.present
    assert {id(entry) for entry in here} == queued | {id(entry) for entry in leased}
    assert book.nbytes == sum(entry.nbytes for entry in here)
    assert book.credit.running == sum(s.running for s in streams if s.joined)
    for stream in streams:
        assert not stream.present.keys() & stream.settled.keys()
        assert stream.arrived <= stream.limit or not stream.joined


class Sampler:
    """What a sampler knows."""

    def __init__(self, inc: int, streams: int) -> None:
        self.inc, self.alive = inc, True
        self.next = [0] * streams
        self.limit = [0] * streams
        self.open: dict[tuple[int, int], Unroll] = {}  # (stream, seq) not acknowledged
        self.ends: dict[tuple[int, int], Outcome] = {}

    def floor(self, stream: int) -> int:
        return min((q for s, q in self.open if s == stream), default=self.next[stream])

    def ranges(self) -> list[tuple[int, int, int]]:
        return [(s, q, q + 1) for s, q in sorted(self.open)]

    def streams(self) -> list[Any]:
        return [
            (s, self.floor(s), n, n, ranges(sorted(q for t, q in self.open if t == s)))
            for s, n in enumerate(self.next)
        ]

    def make(self, stream: int, version: int = 0) -> Unroll:
        seq = self.next[stream]
        self.next[stream] += 1
        unroll = Unroll(self.inc, stream, seq, self.floor(stream), version, version, 1, 0)
        self.open[stream, seq] = unroll
        return unroll

    def hear(self, effects: Effects) -> None:
        for inc, grants in effects.limits:
            for stream, limit, _ in grants if inc == self.inc else ():
                self.limit[stream] = max(self.limit[stream], limit)
        for inc, outcome, acked in effects.acks:
            for stream, lo, hi in acked if inc == self.inc else ():
                for seq in range(lo, hi):
                    if self.open.pop((stream, seq), None) is not None:
                        self.ends[stream, seq] = outcome


def join(one: Ledger, inc: int = 1, streams: int = 1, now: float = 0.0) -> Sampler:
    sampler = Sampler(inc, streams)
    one.actor_hello(inc, f"a{inc}", sampler.streams(), now=now)
    return sampler


def learn(one: Ledger, inc: int = 50, **other: Any) -> int:
    said = {"rank": 0, "world": 1, "version": 0, "want": 9999, "trained": (), "held": ()}
    return one.learner_hello(inc, **{**said, "now": 0.0, **other})


def send(one: Ledger, sampler: Sampler, stream: int = 0, version: int = 0) -> bool:
    return one.unroll(sampler.make(stream, version), BODY, SIZE)


def step(one: Ledger, inc: int, tags: list[int], version: int) -> None:
    """What the server does with DONE."""
    one.done(inc, ranges(sorted(tags)))
    one.learner_heard(inc, 0.0, version=version)


# ---- the machine --------------------------------------------------------------------------------


@dataclass
class Rank:
    """What a learner of one rank knows."""

    inc: int
    given: int = 0
    held: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    trained: set[tuple[int, int, int]] = field(default_factory=set)
    max_tag: int = -1


class Machine(RuleBasedStateMachine):
    """Everybody does what they may, in any order, and loses what can be lost."""

    @initialize(
        batch=st.integers(1, 5),
        max_lag=st.integers(0, 3),
        attempts=st.integers(1, 3),
        room=st.integers(3, 40),
    )
    def begin(self, batch: int, max_lag: int, attempts: int, room: int) -> None:
        self.ledger = ledger(
            batch=batch, max_lag=max_lag, attempts=attempts, max_lag_hard=6, queue_bytes=room * SIZE
        )
        self.ledger.book.unroll_bytes = SIZE
        self.now, self.version = 0.0, 0
        self.samplers: list[Sampler] = []
        self.rank: Rank | None = None
        self.trained: Counter[tuple[int, int, int]] = Counter()
        self.incs = itertools.count(1)
        self.overdraft = False  # somebody came back with more than it had credit for
        self.lost_acks: dict[tuple[int, int, int], Outcome] = {}
        self.settled: dict[tuple[int, int, int], Outcome] = {}

    def pump(self, *, lose: bool = False) -> None:
        credit = self.ledger.book.credit
        limits = self.limits()
        before = credit.budget()
        effects = self.ledger.pump(self.now)
        granted = sum(limit - limits.get(key, 0) for key, limit in self.limits().items())
        assert granted <= max(0, before) or effects.acks, "granted beyond the rule"
        assert credit.budget() >= 0 or not granted
        for entry in effects.deliver:
            unroll = entry.unroll
            assert self.rank is not None and entry.session == self.rank.inc
            self.rank.given += 1
            if not lose:
                self.rank.max_tag = entry.tag
                key = (unroll.inc, unroll.stream, unroll.seq)
                if key in self.rank.trained:
                    self.ledger.nack(self.rank.inc, ranges([entry.tag]), Outcome.DUPLICATE)
                else:
                    self.drop_old(key)
                    self.rank.held[entry.tag] = key
        if not lose:
            for sampler in self.samplers:
                sampler.hear(effects)

    def drop_old(self, key: tuple[int, int, int]) -> None:
        assert self.rank is not None
        self.rank.held = {tag: held for tag, held in self.rank.held.items() if held != key}

    def limits(self) -> dict[tuple[int, int], int]:
        actors = self.ledger.book.actors
        return {(a, n): s.limit for a in actors for n, s in actors[a].streams.items() if s.joined}

    def known(self, sampler: Sampler) -> bool:
        return self.ledger.heard(sampler.inc, self.now)

    @rule(streams=st.integers(1, 3))
    def sampler_joins(self, streams: int) -> None:
        if len(self.samplers) < 4:
            self.samplers.append(join(self.ledger, next(self.incs), streams, self.now))
            self.pump()

    @precondition(lambda self: self.samplers)
    @rule(data=st.data(), lose=st.booleans(), twice=st.booleans())
    def sampler_sends(self, data: st.DataObject, lose: bool, twice: bool) -> None:
        sampler = data.draw(st.sampled_from(self.samplers))
        stream = data.draw(st.integers(0, len(sampler.next) - 1))
        if sampler.next[stream] >= sampler.limit[stream]:
            return
        unroll = sampler.make(stream, max(0, self.version - data.draw(st.integers(0, 8))))
        for _ in range((not lose) * (1 + twice)):
            if not self.known(sampler):
                return self.sampler_returns(sampler)
            try:
                self.ledger.unroll(unroll, BODY, SIZE)
            except BeyondCreditError:
                assert self.overdraft
        self.pump(lose=data.draw(st.booleans()))
        return None

    @precondition(lambda self: self.samplers)
    @rule(data=st.data())
    def sampler_beats(self, data: st.DataObject) -> None:
        sampler = data.draw(st.sampled_from(self.samplers))
        if not self.known(sampler):
            return self.sampler_returns(sampler)
        for stream, lo, hi in self.ledger.missing(sampler.inc, sampler.ranges()):
            for seq in range(lo, hi):
                self.ledger.unroll(sampler.open[stream, seq], BODY, SIZE)
        self.pump()
        here = self.ledger.book.actors[sampler.inc].streams
        for stream, seq in sampler.open:
            limit = here[stream].limit
            assert seq in here[stream].present or seq >= limit, "a beat did not repair it"
        return None

    def sampler_returns(self, sampler: Sampler) -> None:
        actor = self.ledger.book.actors[sampler.inc]
        self.overdraft |= not actor.alive
        self.ledger.actor_hello(sampler.inc, "again", sampler.streams(), now=self.now)

    @precondition(lambda self: self.samplers)
    @rule(data=st.data())
    def sampler_says_hello_twice(self, data: st.DataObject) -> None:
        self.sampler_returns(data.draw(st.sampled_from(self.samplers)))

    @precondition(lambda self: self.samplers)
    @rule(data=st.data(), clean=st.booleans())
    def sampler_goes(self, data: st.DataObject, clean: bool) -> None:
        sampler = data.draw(st.sampled_from(self.samplers))
        self.samplers.remove(sampler)
        if clean:
            self.ledger.actor_bye(sampler.inc, sampler.ranges())

    @rule(data=st.data())
    def learner_begins(self, data: st.DataObject) -> None:
        back = data.draw(st.integers(0, 3))
        trained = self.rank.trained if self.rank is not None else set()
        self.rank = Rank(next(self.incs) + 10**6, trained=trained)
        started, seen = max(0, self.version - back), self.ledger.book.credit.version
        windows = [(i, s, ranges([q])) for i, s, q in sorted(trained)]
        self.version = learn(
            self.ledger, self.rank.inc, version=started, want=6, trained=windows, now=self.now
        )
        assert self.version == (started if started >= seen else seen + 1)
        self.pump()

    @precondition(lambda self: self.rank is not None and self.rank.held)
    @rule(data=st.data(), lose=st.booleans())
    def learner_steps(self, data: st.DataObject, lose: bool) -> None:
        assert self.rank is not None
        tags = list(self.rank.held)[: data.draw(st.integers(1, 5))]
        keys = [self.rank.held.pop(tag) for tag in tags]
        self.rank.trained.update(keys)
        self.trained.update(keys)
        self.version += 1
        if not lose and self.ledger.learner_heard(self.rank.inc, self.now):
            self.ledger.done(self.rank.inc, ranges(sorted(tags)))
            self.ledger.learner_heard(
                self.rank.inc, self.now, version=self.version, want=self.rank.given + 6
            )
            self.pump()

    @precondition(lambda self: self.rank is not None and self.rank.held)
    @rule(outcome=st.sampled_from((Outcome.REJECTED, Outcome.ABANDONED)))
    def learner_refuses(self, outcome: Outcome) -> None:
        assert self.rank is not None
        tag = next(iter(self.rank.held))
        del self.rank.held[tag]
        self.ledger.nack(self.rank.inc, ranges([tag]), outcome)

    @precondition(lambda self: self.rank is not None)
    @rule()
    def learner_beats(self) -> None:
        assert self.rank is not None
        rank = self.rank
        if not self.ledger.learner_heard(rank.inc, self.now):
            held = [(tag, *key) for tag, key in rank.held.items()]
            windows = [(i, s, ranges([q])) for i, s, q in sorted(rank.trained)]
            learn(
                self.ledger, rank.inc, version=self.version, want=6, trained=windows, held=held,
                now=self.now,
            )  # fmt: skip
        self.ledger.held(rank.inc, ranges(sorted(rank.held)), rank.max_tag)
        self.ledger.learner_heard(
            rank.inc, self.now, version=self.version, want=rank.given + 6 - len(rank.held)
        )
        self.pump()

    @rule(seconds=st.floats(0.1, 8.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.ledger.tick(self.now)
        self.pump()

    # ---- what always holds ----------------------------------------------------------------------

    @invariant()
    def totals(self) -> None:
        recount(self.ledger)

    @invariant()
    def bound(self) -> None:
        book = self.ledger.book
        assert book.credit.budget() >= 0 or self.overdraft
        assert book.nbytes <= book.queue_bytes

    @invariant()
    def outcomes(self) -> None:
        for actor in self.ledger.book.actors.values():
            for number, stream in actor.streams.items():
                for seq, outcome in stream.settled.items():
                    key = (actor.inc, number, seq)
                    assert self.settled.setdefault(key, outcome) is outcome, "it changed its end"
                    assert outcome is not Outcome.TRAINED or self.trained[key]
        for sampler in self.samplers:
            for (number, seq), outcome in sampler.ends.items():
                assert outcome is not Outcome.TRAINED or self.trained[sampler.inc, number, seq]
        # One learner remembers all it trained on: no second time.
        assert all(times == 1 for times in self.trained.values())


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)


# ---- pacing -------------------------------------------------------------------------------------


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
        places = granted(samplers, one.pump(0.0))
        assert len(places) == 6 and {floor for _, _, floor in places} == {version}
        for sampler, stream, _ in places:
            send(one, sampler, stream, version)
        effects = one.pump(0.0)
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
        effects = one.pump(0.0)
        leased += [(e.tag, e.unroll.version_min) for e in effects.deliver]
        places = granted(samplers, effects)
        assert all(floor <= version for _, _, floor in places)
        running += [(sampler, stream) for sampler, stream, _ in places]
        for sampler, stream in running[:3]:  # first granted, first done
            # The oldest weights that the credit allows.
            floor = one.book.actors[sampler.inc].streams[stream].floor_version
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
        effects = one.pump(0.0)
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
    first.hear(one.pump(0.0))
    assert (first.limit, one.book.credit.budget()) == ([1], 0)
    one.actor_bye(1, ())
    second.hear(one.pump(0.0))
    assert second.limit == [1]


def test_memory_bounds_credit() -> None:
    one = ledger(batch=100, max_lag=9, queue_bytes=7 * SIZE)
    one.book.unroll_bytes = SIZE
    samplers = [join(one, inc, 4) for inc in range(1, 9)]
    learn(one, want=0)
    for _ in range(3):
        for sampler, stream, _ in granted(samplers, one.pump(0.0)):
            assert send(one, sampler, stream)
    assert one.book.nbytes == 7 * SIZE


def test_a_grant_after_more_arrived_than_was_granted() -> None:
    credit, stream = Credit(batch=4, max_lag=0), Stream(actor=1, number=0)
    credit.join(stream, arrived=0, started=0)
    credit.arrive(stream)  # adopted on a learner's word
    assert credit.grant(1) == [stream] and credit.running == stream.running == 1


# ---- how unrolls end ----------------------------------------------------------------------------


def ready(**other: int) -> tuple[Ledger, Sampler]:
    """A ledger with a learner, and a sampler that holds credit."""
    one = ledger(**other)
    sampler = join(one)
    learn(one)
    sampler.hear(one.pump(0.0))
    return one, sampler


def tags(one: Ledger) -> list[int]:
    return [entry.tag for entry in one.pump(0.0).deliver]


def test_only_what_was_granted_is_taken() -> None:
    one, sampler = ready(batch=1, max_lag=0)
    send(one, sampler)
    with pytest.raises(BeyondCreditError, match="seq 1"):
        send(one, sampler)
    with pytest.raises(BeyondCreditError):
        one.unroll(Unroll(1, 9, 0, 0, 0, 0, 1, 0), BODY, SIZE)
    assert one.missing(1, sampler.ranges()) == ()  # nor asked for before its time
    recount(one)


def test_poison_after_as_many_learners_as_attempts() -> None:
    one, sampler = ready(attempts=3)
    send(one, sampler)
    for learner in (60, 61, 62):
        assert len(tags(one)) == 1
        learn(one, learner)  # the one before died with it
    sampler.hear(one.pump(0.0))
    assert sampler.ends == {(0, 0): Outcome.POISON}
    recount(one)


def test_what_got_lost_on_the_way_is_no_attempt_and_goes_to_the_same_rank() -> None:
    one, sampler = ready(attempts=2)
    learn(one, 51, rank=1, world=2)
    learn(one, 50, rank=0, world=2)
    send(one, sampler)
    (entry,) = one.pump(0.0).deliver
    home = entry.session
    for _ in range(9):
        one.held(home, (), entry.tag)
        (entry,) = one.pump(0.0).deliver
        assert (entry.session, entry.attempt) == (home, 1)
    one.nack(home, ranges([entry.tag]), Outcome.ABANDONED)
    assert len(one.pump(0.0).deliver) == 1
    recount(one)


def test_hello_twice_gives_nobody_elses_rank_what_is_on_its_way() -> None:
    one, sampler = ready(attempts=2)
    learn(one, 51, rank=1, world=2)
    learn(one, 50, rank=0, world=2)
    send(one, sampler)
    (entry,) = one.pump(0.0).deliver
    home, rank = entry.session, 0 if entry.session == 50 else 1
    for _ in range(5):
        learn(one, home, rank=rank, world=2)
        assert [(e.session, e.attempt) for e in one.pump(0.0).deliver] == [(home, 1)]


def test_too_old_is_stale_when_its_turn_comes() -> None:
    one, sampler = ready(max_lag=5, max_lag_hard=3)
    send(one, sampler, version=0)
    send(one, sampler, version=1)
    one.book.leases.sessions[0].want = 0
    one.learner_heard(50, 0.0, version=4)
    one.book.leases.sessions[0].want = 9
    effects = one.pump(0.0)
    sampler.hear(effects)
    assert sampler.ends == {(0, 0): Outcome.STALE}
    assert [entry.unroll.seq for entry in effects.deliver] == [1]


def test_no_room_is_said() -> None:
    one, sampler = ready(queue_bytes=2 * SIZE)  # sizes not known, so credit does not see the end
    assert [send(one, sampler) for _ in range(3)] == [True, True, False]
    sampler.hear(one.pump(0.0))
    assert sampler.ends == {(0, 2): Outcome.SHED}
    recount(one)


def test_a_fenced_learner_changes_nothing() -> None:
    one, sampler = ready()
    send(one, sampler)
    (old,) = tags(one)
    learn(one, 51)
    (new,) = tags(one)
    assert one.done(50, ranges([old, new])) == one.done(51, ranges([old])) == 0
    one.nack(50, ranges([new]), Outcome.REJECTED)
    assert not one.learner_heard(50, 0.0, version=99) and one.book.credit.version == 0
    assert one.done(51, ranges([new])) == 1
    assert one.done(51, ranges([new])) == 0


def test_outcomes_of_a_nack() -> None:
    one, sampler = ready()
    for _ in range(3):
        send(one, sampler)
    first, second, third = tags(one)
    one.nack(50, ranges([first]), Outcome.REJECTED)
    one.nack(50, ranges([second]), Outcome.DUPLICATE)
    one.nack(50, ranges([third]), Outcome.ABANDONED)
    sampler.hear(one.pump(0.0))
    assert sampler.ends == {(0, 0): Outcome.REJECTED, (0, 1): Outcome.TRAINED}
    assert one.book.entries == 1
    recount(one)


def test_a_clean_end_of_a_sampler() -> None:
    one, sampler = ready()
    for _ in range(3):
        send(one, sampler)
    one.book.leases.sessions[0].want = one.book.leases.sessions[0].given + 1
    assert len(tags(one)) == 1
    sampler.make(0)  # never arrives
    one.actor_bye(1, sampler.ranges())
    assert one.book.outcomes[Outcome.ABANDONED] == 3
    assert one.book.entries == 1  # leased: it will be trained all the same
    assert one.book.credit.running == 0
    recount(one)


def test_silence_is_death_and_death_returns_leases() -> None:
    one, sampler = ready()
    send(one, sampler)
    assert len(tags(one)) == 1
    assert one.tick(LEASE + 1)[0].inc == 1
    assert not one.heard(1, LEASE + 1) and not one.learner_heard(50, LEASE + 1)
    assert (len(one.book.leases), one.book.credit.running, one.book.entries) == (0, 0, 1)
    recount(one)


def test_ranks_hold_their_share_and_no_more() -> None:
    """Rank 1 is away; rank 0 must not take the unrolls without which no step is possible."""
    one = ledger(batch=4, max_lag=0)
    sampler = join(one)
    learn(one, 50, rank=0, world=2, want=8)
    learn(one, 51, rank=1, world=2, want=8)
    one.learner_bye(51, final=False)
    sampler.hear(one.pump(0.0))
    for _ in range(4):
        send(one, sampler)
    assert len(tags(one)) == 2
    learn(one, 52, rank=1, world=2, want=8)
    assert [entry.session for entry in one.pump(0.0).deliver] == [52, 52]


def test_the_end_of_the_run_stops_credit() -> None:
    one, sampler = ready()
    one.learner_bye(50, final=True)
    send(one, sampler)
    limit = one.book.actors[1].streams[0].limit
    one.pump(0.0)
    assert one.over and one.book.actors[1].streams[0].limit == limit


# ---- coming back --------------------------------------------------------------------------------


@pytest.mark.parametrize("order", list(itertools.permutations(("sampler", "rank 0", "rank 1"))))
def test_a_new_broker_learns_everything_from_its_peers(order: tuple[str, ...]) -> None:
    """Version 7, four to a batch: of eight open unrolls rank 0 trained seq 0 and holds seq 1, rank
    1 trained seq 2 and holds seq 3, seqs 4..6 are only at the sampler, seq 7 is still running."""
    one = ledger(batch=4, max_lag=2)
    sampler = Sampler(1, 1)
    for _ in range(7):
        sampler.make(0)
    trained = {50: 0, 51: 2}
    held = {50: 1, 51: 3}

    def enter(who: str) -> None:
        if who == "sampler":
            streams = [(0, 0, 7, 8, ((0, 7),))]
            one.actor_hello(1, "a", streams, now=0.0)
        else:
            inc, rank = (50, 0) if who == "rank 0" else (51, 1)
            learn(
                one, inc, rank=rank, world=2, version=7, want=9,
                trained=[(1, 0, ranges([trained[inc]]))], held=[(inc, 1, 0, held[inc])],
            )  # fmt: skip

    delivered = []
    for who in order:
        enter(who)
        delivered += one.pump(0.0).deliver
        recount(one)
    credit = one.book.credit
    assert delivered == []
    for _, lo, hi in one.missing(1, sampler.ranges()):
        for seq in range(lo, hi):
            assert seq in (4, 5, 6), "asked for what a learner has"
            one.unroll(sampler.open[0, seq], BODY, SIZE)
    effects = one.pump(0.0)
    sampler.hear(effects)
    assert sampler.ends == {(0, 0): Outcome.TRAINED, (0, 2): Outcome.TRAINED}
    assert sorted(entry.unroll.seq for entry in effects.deliver) == [4, 5, 6]
    assert credit.accepted == 7 * 4 + 5
    assert credit.running == one.book.actors[1].streams[0].limit - 7
    step(one, 50, [50], 8)
    step(one, 51, [51], 8)
    sampler.hear(one.pump(0.0))
    assert sampler.ends[0, 1] is sampler.ends[0, 3] is Outcome.TRAINED
    assert credit.accepted == 8 * 4 + 3
    recount(one)


def test_dispatch_waits_for_every_rank_or_one_lease() -> None:
    one = ledger()
    sampler = join(one)
    learn(one, 50, rank=0, world=2)
    sampler.hear(one.pump(0.0))  # credit does not wait
    send(one, sampler)
    assert one.pump(LEASE - 0.1).deliver == []
    assert len(one.pump(LEASE).deliver) == 1


def test_what_a_dead_learner_held_comes_from_the_sampler_again() -> None:
    """Adopted on the learner's word, so there is no body here to deliver again."""
    one = ledger()
    learn(one, held=[(9, 1, 0, 0)])
    sampler = Sampler(1, 1)
    sampler.make(0)
    one.actor_hello(1, "a", sampler.streams(), now=0.0)
    assert one.missing(1, sampler.ranges()) == ()
    learn(one, 51)
    assert one.missing(1, sampler.ranges()) == ((0, 0, 1),)
    assert one.unroll(sampler.open[0, 0], BODY, SIZE)
    assert len(tags(one)) == 1
    recount(one)


def test_a_second_hello_takes_no_credit_back() -> None:
    """RESYNC answers every message, so a sampler often says HELLO more than once."""
    one = ledger(batch=1, max_lag=0)
    sampler, _ = join(one, 1), join(one, 2)
    learn(one)
    sampler.hear(one.pump(0.0))
    assert sampler.limit == [1]
    one.actor_hello(1, "a", sampler.streams(), now=0.0)  # sent before the LIMIT came
    ((inc, ((_, limit, _),)),) = one.pump(0.0).limits
    assert (inc, limit) == (1, 1)  # it is told again, and nobody else got it
    assert send(one, sampler)
    recount(one)


def test_what_an_earlier_broker_acknowledged_has_arrived() -> None:
    """The sampler does not name it any more, the learner still does: it counts once."""
    one = ledger()
    one.actor_hello(1, "a", [(0, 0, 3, 3, ((0, 1), (2, 3)))], now=0.0)
    learn(one, trained=[(1, 0, ((0, 2),))], want=0)
    assert one.book.actors[1].streams[0].arrived == 2
    assert one.book.credit.running == 1
    recount(one)


def test_a_sampler_thought_dead_keeps_what_it_started() -> None:
    one, sampler = ready(batch=2, max_lag=0)
    other = join(one, 2, now=LEASE)
    one.tick(LEASE + 1)
    other.hear(one.pump(LEASE + 1))
    assert other.limit == [2]  # its credit went to another
    sampler.make(0)
    one.actor_hello(1, "a", sampler.streams(), now=LEASE + 2)
    assert one.book.credit.budget() == -1
    one.pump(LEASE + 2)
    assert one.book.credit.budget() == -1  # no grant until the rule holds again
    assert one.missing(1, sampler.ranges()) == ((0, 0, 1),)
    recount(one)


def test_an_older_checkpoint_goes_on_above_and_is_counted() -> None:
    one, _ = ready()
    assert learn(one, 51, version=0) == 0
    one.learner_heard(51, 0.0, version=10)
    assert learn(one, 52, version=7) == 11
    assert one.rolled_back == 3 * 4
    assert learn(one, 52, version=7) == 11  # HELLO twice is one return
    assert one.rolled_back == 3 * 4
    assert one.book.credit.budget() == 2 * 4 - one.book.credit.running


def test_what_many_samplers_leave_behind_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.book._MOST_DEAD", 5)
    one = ledger()
    for inc in range(1, 100):
        join(one, inc, now=0.0)
        one.actor_bye(inc, ())
        one.tick(float(inc))
    assert len(one.book.actors) <= 7


def test_forged_ranges_do_not_hold_the_loop() -> None:
    one, _ = ready()
    far = 2**53
    one.missing(1, [(0, 0, far), (9, 0, far)])
    one.actor_hello(1, "a", [(0, 0, 0, 0, ((0, far),))], now=0.0)
    learn(one, 50, trained=[(77, 0, ((0, far),))])
    one.done(50, [(0, far)])
    one.held(50, [(0, far)], far)
    one.actor_bye(1, [(0, 0, far), (9, 0, 1)])
