"""The broker's decisions, tried by a machine: everything that may happen, in any order."""

import itertools
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.broker.ledger.ledger import BeyondCreditError
from headrace.broker.protocol.messages import Outcome, ranges
from tests.broker.ledger.accounts import BODY, SIZE, Sampler, join, learn, ledger, recount


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
        balanced=st.booleans(),
    )
    def begin(self, batch: int, max_lag: int, attempts: int, room: int, balanced: bool) -> None:
        self.ledger = ledger(
            batch=batch,
            max_lag=max_lag,
            balanced=balanced,
            attempts=attempts,
            max_lag_hard=6,
            queue_bytes=room * SIZE,
        )
        self.ledger.state.unroll_bytes = SIZE
        self.now, self.version = 0.0, 0
        self.samplers: list[Sampler] = []
        self.rank: Rank | None = None
        self.trained: Counter[tuple[int, int, int]] = Counter()
        self.incs = itertools.count(1)
        self.overdraft = False  # somebody came back with more than it had credit for
        self.lost_acks: dict[tuple[int, int, int], Outcome] = {}
        self.settled: dict[tuple[int, int, int], Outcome] = {}

    def pump(self, *, lose: bool = False) -> None:
        credit = self.ledger.state.credit
        limits = self.limits()
        before = credit.budget()
        effects = self.ledger.decide(self.now)
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
        actors = self.ledger.state.actors
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
        for stream, lo, hi in self.ledger.ping(sampler.inc, sampler.ranges()):
            for seq in range(lo, hi):
                self.ledger.unroll(sampler.open[stream, seq], BODY, SIZE)
        self.pump()
        here = self.ledger.state.actors[sampler.inc].streams
        for stream, seq in sampler.open:
            limit = here[stream].limit
            assert seq in here[stream].present or seq >= limit, "a beat did not repair it"
        return None

    def sampler_returns(self, sampler: Sampler) -> None:
        actor = self.ledger.state.actors[sampler.inc]
        self.overdraft |= not actor.alive
        self.ledger.actor_hello(sampler.inc, "again", sampler.streams(), now=self.now)

    @precondition(lambda self: self.samplers)
    @rule(data=st.data(), behind=st.integers(0, 8))
    def sampler_has_weights(self, data: st.DataObject, behind: int) -> None:
        sampler = data.draw(st.sampled_from(self.samplers))
        self.ledger.acts_with(sampler.inc, max(-1, self.version - behind))
        self.pump()

    @precondition(lambda self: self.samplers)
    @rule(data=st.data(), more=st.integers(0, 9), wrong=st.booleans())
    def sampler_gives_back(self, data: st.DataObject, more: int, wrong: bool) -> None:
        """All it has not started, or less, if it says that more runs; asked or not, and with the
        number of the question or another one."""
        sampler = data.draw(st.sampled_from(self.samplers))
        if not self.known(sampler):
            return self.sampler_returns(sampler)
        for number, stream in self.ledger.state.actors[sampler.inc].streams.items():
            started = sampler.next[number] + more
            if stream.asked and not wrong:
                sampler.limit[number] = min(sampler.limit[number], started)
            before, answers = stream.limit, stream.asked and not wrong
            self.ledger.returned(sampler.inc, [(number, stream.asks + wrong, started)])
            assert answers or stream.limit == before
            assert stream.limit >= sampler.limit[number] or self.overdraft
        self.pump()
        return None

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
        started, seen = max(0, self.version - back), self.ledger.state.credit.version
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
                self.ledger,
                rank.inc,
                version=self.version,
                want=6,
                trained=windows,
                held=held,
                now=self.now,
            )
        self.ledger.redeliver_lost(rank.inc, ranges(sorted(rank.held)), rank.max_tag)
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
        state = self.ledger.state
        assert state.credit.budget() >= 0 or self.overdraft
        assert state.nbytes <= state.queue_bytes

    @invariant()
    def outcomes(self) -> None:
        for actor in self.ledger.state.actors.values():
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


TestMachine = pytest.mark.slow(Machine.TestCase)
TestMachine.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
