"""Every stream supplies alike, and none that is gone or hangs stops the others."""

import random
from typing import Any

import pytest

from headrace.broker.ledger.ledger import Ledger
from headrace.broker.ledger.records import Effects
from tests.broker.ledger.accounts import LEASE, Sampler, join, learn, ledger, recount, send, step


class Play:
    """Samplers of one stream each that need so many turns for an unroll, and a learner."""

    def __init__(self, speeds: list[int], *, turn_s: float = 0.1, **other: Any) -> None:
        self.one: Ledger = ledger(**{"batch": 8, "queue_bytes": 10**9, **other})
        self.speeds, self.turn_s, self.now = speeds, turn_s, 0.0
        self.samplers = [join(self.one, inc) for inc in range(1, len(speeds) + 1)]
        self.busy = [0] * len(speeds)
        self.hung: set[int] = set()  # it beats and does not go on
        self.gone: set[int] = set()  # it does not even beat
        self.behind: dict[int, int] = {}  # versions that its weights are older than the newest
        self.tags: list[int] = []
        learn(self.one, want=10**9)

    def run(self, turns: int) -> None:
        for _ in range(turns):
            self.now += self.turn_s
            self.one.tick(self.now)
            effects = self.one.decide(self.now)
            self.tags += [entry.tag for entry in effects.deliver]
            for n, sampler in enumerate(self.samplers):
                if n not in self.gone:
                    sampler.hear(effects)
                    self.answer(n, sampler, effects)
                    self.play(n, sampler)
            self.one.learner_heard(50, self.now)
            batch = self.one.state.credit.batch
            while len(self.tags) >= batch:
                version = self.one.state.credit.version + 1
                step(self.one, 50, self.tags[:batch], version)
                self.one.learner_heard(50, self.now)
                del self.tags[:batch]
        recount(self.one)

    def answer(self, n: int, sampler: Sampler, effects: Effects) -> None:
        """Says what it started, and gives the rest back."""
        for inc, asked in effects.recalls:
            for stream, number in asked if inc == sampler.inc else ():
                started = sampler.next[stream] + (self.busy[n] > 0)
                sampler.limit[stream] = started
                self.one.returned(inc, [(stream, number, started)])

    def play(self, n: int, sampler: Sampler) -> None:
        version = max(0, self.one.state.credit.version - self.behind.get(n, 0))
        self.one.heard(sampler.inc, self.now)
        self.one.acts_with(sampler.inc, version)
        if n in self.hung:
            return
        if self.busy[n] == 0 and sampler.next[0] < sampler.limit[0]:
            self.busy[n] = self.speeds[n] + 1
        if self.busy[n]:
            self.busy[n] -= 1
            if self.busy[n] == 0:
                send(self.one, sampler, 0, version)

    @property
    def counts(self) -> list[int]:
        return [sampler.next[0] for sampler in self.samplers]


UNEVEN = [30] * 4 + [1] * 12


def test_every_stream_supplies_alike() -> None:
    free, play = Play(UNEVEN), Play(UNEVEN, balanced=True)
    free.run(3000)
    play.run(3000)
    assert max(free.counts) > 3 * min(free.counts)
    assert max(play.counts) - min(play.counts) <= 4
    assert min(play.counts) > 0.8 * 3000 / 31  # the slow ones set the pace, and never wait


def test_whose_weights_come_late_supplies_alike() -> None:
    """Credit meets weights that are too old, which are on their way: it is still waited for."""
    play = Play([3] * 8 + [1] * 8, balanced=True)
    play.behind = dict.fromkeys(range(8), 3)
    play.run(3000)
    assert min(play.counts) > 500
    assert max(play.counts) - min(play.counts) <= 4


def test_whose_weights_never_come_holds_up_the_others_until_its_credit_is_asked_for() -> None:
    play = Play([1] * 16, balanced=True)
    play.run(200)
    play.behind, play.hung = {0: 10**9}, {0}
    before = play.counts
    play.run(round(6 * LEASE / play.turn_s))
    during = play.counts
    play.run(500)
    assert play.counts[0] == before[0]
    assert all(after - then > 100 for after, then in zip(play.counts[1:], during[1:], strict=True))


def test_a_run_begins_at_the_pace_of_the_slowest() -> None:
    play = Play([200] * 4 + [1] * 12, balanced=True)
    play.run(190)
    assert play.counts == [0] * 4 + [4] * 12
    play.run(200)
    assert play.counts == [1] * 4 + [5] * 12


def test_one_that_never_delivers_is_waited_for_until_it_is_overdue() -> None:
    play = Play(UNEVEN, balanced=True)
    play.hung.add(0)
    play.run(100)
    assert max(play.counts) == 4
    play.run(int(6 * LEASE / play.turn_s))
    before = play.counts
    play.run(500)
    assert min(now - then for now, then in zip(play.counts[1:], before[1:], strict=True)) > 10


def test_one_without_weights_is_not_waited_for() -> None:
    play = Play(UNEVEN, balanced=True)
    play.run(300)
    one, counts = play.one, play.counts
    one.actor_hello(99, "a99", Sampler(99, 1).streams(), now=play.now, acting=-1)
    for _ in range(500):
        play.run(1)
        one.heard(99, play.now)
    assert min(now - then for now, then in zip(play.counts, counts, strict=True)) > 10


@pytest.mark.parametrize("max_lag", [0, 1, 4])
@pytest.mark.parametrize("batch", [1, 5, 16])
def test_it_always_moves_at_the_pace_of_the_slowest(batch: int, max_lag: int) -> None:
    play = Play(UNEVEN, balanced=True, batch=batch, max_lag=max_lag)
    play.run(200)
    before = play.one.state.credit.version
    play.run(600)
    assert play.one.state.credit.version > before + 10


def test_one_that_is_gone_holds_up_the_others_for_a_lease() -> None:
    play = Play(UNEVEN, balanced=True)
    play.run(300)
    play.gone.add(0)
    play.run(int(LEASE / play.turn_s) + 2)
    before = play.counts
    play.run(500)
    assert min(now - then for now, then in zip(play.counts[1:], before[1:], strict=True)) > 10


def test_one_that_hangs_holds_up_the_others_until_it_is_overdue() -> None:
    play = Play(UNEVEN, balanced=True)
    play.run(300)
    play.hung.add(0)
    play.run(int(6 * LEASE / play.turn_s))
    before = play.counts
    play.run(500)
    assert min(now - then for now, then in zip(play.counts[1:], before[1:], strict=True)) > 10
    play.hung.clear()
    play.run(100)
    before = play.counts
    play.run(1000)
    grown = [now - then for now, then in zip(play.counts, before, strict=True)]
    assert max(grown) - min(grown) <= 5  # it is among them again, and need not catch up


def test_who_comes_later_begins_beside_the_slowest() -> None:
    play = Play(UNEVEN, balanced=True)
    play.run(1000)
    play.samplers.append(join(play.one, 99, 1, play.now))
    play.speeds, play.busy = [*play.speeds, 1], [*play.busy, 0]
    before = [*play.counts[:-1], 0]
    play.run(1000)
    grown = [now - then for now, then in zip(play.counts, before, strict=True)]
    assert max(grown) - min(grown) <= 6


@pytest.mark.parametrize("seed", range(5))
def test_whatever_comes_and_goes_it_moves(seed: int) -> None:
    rng = random.Random(seed)
    speeds = [rng.choice((1, 3, 20)) for _ in range(12)]
    play = Play(speeds, balanced=True, batch=rng.choice((1, 4, 12)), max_lag=rng.choice((0, 2)))
    for _ in range(8):
        play.hung = {n for n in range(12) if rng.random() < 0.1}
        play.run(rng.randrange(50, 400))
    play.hung = {0}
    # Those that hung before made the longest unroll, of which this one is given four times.
    overdue_s = play.one.state.credit.durations.overdue_s(LEASE)
    play.run(int((overdue_s + LEASE) / play.turn_s))
    before = play.one.state.credit.version
    play.run(500)
    assert play.one.state.credit.version > before + 5
