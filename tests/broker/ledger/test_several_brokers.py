"""Several ledgers and one learner: what pacing promises, over all of them together."""

import operator
import random
from collections import Counter

import pytest

from headrace.broker.ledger.ledger import Ledger
from headrace.broker.ledger.state import LedgerState
from headrace.broker.peers.shares import shares
from headrace.broker.protocol.messages import Outcome
from tests.broker.ledger.accounts import Sampler, join, learn, send

BATCH, MAX_LAG = 6, 1
WINDOW = (MAX_LAG + 1) * BATCH


def ledger(share: int) -> Ledger:
    state = LedgerState(
        batch=BATCH,
        share=share,
        max_lag=MAX_LAG,
        max_lag_hard=50,
        queue_bytes=1 << 30,
        attempts=3,
        first_tag=0,
    )
    return Ledger(state, lease_s=10.0)


def test_the_share_is_the_window() -> None:
    one = ledger(2)
    learn(one)
    credit = one.state.credit
    assert (credit.window, credit.budget()) == (4, 4)
    one.learner_heard(50, 0.0, share=6)
    assert (credit.window, credit.budget()) == (12, 12)
    one.learner_heard(50, 0.0)  # an older learner, or one that says nothing of it
    assert credit.window == 12
    one.learner_heard(50, 0.0, share=10**9)
    assert credit.window == 12
    one.learner_heard(50, 0.0, share=0)
    assert (credit.window, credit.budget()) == (0, 0)


def test_a_share_that_shrinks_takes_nothing_back() -> None:
    one, sampler = ledger(6), Sampler(1, 4)
    one.actor_hello(1, "a", sampler.streams(), now=0.0)
    learn(one)
    one.decide(0.0)
    held = one.state.credit.running
    one.learner_heard(50, 0.0, share=1)
    one.decide(0.0)
    assert one.state.credit.running == held == WINDOW
    assert one.state.credit.budget() == 2 - WINDOW


def test_only_rank_0_says_it_and_only_where_there_are_several() -> None:
    one = ledger(2)
    learn(one, 50, rank=0, world=2)
    learn(one, 51, rank=1, world=2)
    one.learner_heard(51, 0.0, share=6)
    assert one.state.credit.window == 4
    alone = ledger(0)
    learn(alone)
    alone.learner_heard(50, 0.0, share=1)
    assert alone.state.credit.window == WINDOW


def test_rank_0_is_believed_however_little_it_was_given_here() -> None:
    """Its steps train what other brokers have too."""
    one = ledger(2)
    learn(one, 50, rank=0, world=2)
    learn(one, 51, rank=1, world=2)
    one.learner_heard(51, 0.0, version=5000)
    assert one.state.credit.version == 0
    one.learner_heard(50, 0.0, version=5000)
    assert one.state.credit.version == 5000
    assert one.may_publish(50, 5001)
    assert not one.may_publish(51, 5001)


class Run:
    """Brokers, samplers that each stay with one, and a learner that takes from all."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.count = self.rng.randint(2, 4)
        self.brokers = [self._broker() for _ in range(self.count)]
        self.silent = [False] * self.count
        self.samplers: list[list[Sampler]] = [[] for _ in range(self.count)]
        self.held: list[list[int]] = [[] for _ in range(self.count)]  # tags
        self.version, self.next_inc, self.fell_silent = 0, 100, 0

    def _broker(self) -> Ledger:
        made = ledger(BATCH // self.count)
        learn(made)
        return made

    def open(self) -> list[int]:
        return [one.state.credit.present + one.state.credit.running for one in self.brokers]

    def windows(self) -> list[int]:
        """Those of the brokers that answer."""
        windows = [one.state.credit.window for one in self.brokers]
        return [0 if quiet else most for most, quiet in zip(windows, self.silent, strict=True)]

    def beat(self) -> None:
        streams = [
            None if silent else one.state.credit.streams
            for one, silent in zip(self.brokers, self.silent, strict=True)
        ]
        for at, share in enumerate(shares(streams, batch=BATCH)):
            if not self.silent[at]:
                self.brokers[at].learner_heard(50, 0.0, version=self.version, share=share)
        assert sum(self.windows()) == (0 if all(self.silent) else WINDOW)

    def turn(self) -> None:
        """Everybody plays what credit allows, and the learner trains what is there."""
        for at, one in enumerate(self.brokers):
            if self.silent[at]:
                continue
            effects = one.decide(0.0)
            self.held[at] += [entry.tag for entry in effects.deliver]
            for sampler in self.samplers[at]:
                sampler.hear(effects)
                for stream, limit in enumerate(sampler.limit):
                    if sampler.next[stream] < limit and self.rng.random() < 0.7:
                        send(one, sampler, stream, self.version)
        while sum(map(len, self.held)) >= BATCH:
            self.version += 1
            left = BATCH
            for at in self.rng.sample(range(self.count), self.count):
                tags, self.held[at] = self.held[at][:left], self.held[at][left:]
                left -= len(tags)
                self.brokers[at].done(50, [(tag, tag + 1) for tag in tags])
                if not self.silent[at]:
                    self.brokers[at].learner_heard(50, 0.0, version=self.version)

    def event(self) -> None:
        at = self.rng.randrange(self.count)
        match self.rng.choice(("join", "join", "leave", "silent", "back")):
            case "join":
                self.next_inc += 1
                made = join(self.brokers[at], self.next_inc, self.rng.randint(1, 3))
                self.samplers[at].append(made)
                self.brokers[at].acts_with(made.inc, self.version)
            case "leave" if self.samplers[at] and not self.silent[at]:
                gone = self.samplers[at].pop()
                self.brokers[at].actor_bye(gone.inc, ())
            case "silent":
                self.silent[at], self.fell_silent = True, self.fell_silent + 1
            case "back":
                self.silent[at] = False


@pytest.mark.parametrize("seed", range(40))
def test_sampling_is_never_further_ahead_and_the_others_go_on(seed: int) -> None:
    run = Run(seed)
    for _ in range(30):
        run.event()
        for _ in range(4):
            before = run.open()
            run.beat()
            run.turn()
            # What a broker had before its share went to others stays until it is trained.
            bounds = map(max, before, [one.state.credit.window for one in run.brokers])
            assert all(map(operator.le, run.open(), bounds))
        if any(
            all(place) for place in zip(run.samplers, map(operator.not_, run.silent), strict=True)
        ):
            version = run.version
            for _ in range(40):
                run.beat()
                run.turn()
            assert run.version > version
            left = [n for n, quiet in zip(run.open(), run.silent, strict=True) if not quiet]
            assert sum(left) <= WINDOW
    ends: Counter[Outcome] = Counter()
    for one in run.brokers:
        assert one.unaccounted() == 0
        ends.update(one.state.outcomes)
    assert ends[Outcome.TRAINED] == run.version * BATCH
    assert not ends[Outcome.SHED]
    assert ends[Outcome.STALE] <= WINDOW * run.fell_silent  # as of any broker that was away
