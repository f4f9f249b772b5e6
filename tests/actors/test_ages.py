"""Checks how old steps are when they are trained: the real ledger, all else on a played clock."""

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import pytest

from headrace.actors.rollout import versions_to_play
from headrace.broker.ledger.records import Entry
from headrace.broker.protocol.messages import Unroll, ranges
from headrace.learner.batches.step_ages import StepAges, UnrollAge
from tests.broker.ledger.accounts import join, learn, ledger, recount

LENGTH, STEP_S, LINE_S, PREFETCH = 20, 0.002, 0.002, 2
LEAST = LENGTH // 10


@dataclass
class Environment:
    """Plays a sampler with one environment."""

    inc: int
    step_s: float
    version: int = 0  # acts with
    started: int = 0
    limit: int = 0
    floor: int = 0
    running: list[int] = field(default_factory=list)  # versions of the steps of the open unroll
    sent: dict[int, int] = field(default_factory=dict)  # seq -> version; not acknowledged
    waits: deque[int] = field(default_factory=lambda: deque([0], maxlen=4))
    trained: int = 0  # steps
    unrolls: int = 0  # trained
    short: int = 0


class Clock:
    """Runs samplers, the ledger and a learner; every message takes as long."""

    def __init__(self, speeds: list[float], *, batch: int, max_lag: int, learn_s: float) -> None:
        self.now, self.version, self.dice = 0.0, 0, random.Random(1)
        self.batch, self.max_lag, self.learn_s = batch, max_lag, learn_s
        self.ends_early = True
        self.ages = StepAges()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._held: deque[Entry] = deque()
        self._busy = False
        self.one = ledger(batch=batch, max_lag=max_lag, max_lag_hard=10**6, queue_bytes=10**12)
        self.envs = [Environment(inc, step_s) for inc, step_s in enumerate(speeds, 1)]
        for env in self.envs:
            join(self.one, env.inc)
        learn(self.one, 5000, want=(PREFETCH + 1) * batch)
        self._tick()

    def run(self, seconds: float) -> None:
        while self.now < seconds:
            self.now, _, call = heapq.heappop(self._events)
            call()
        recount(self.one)

    def _after(self, seconds: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._order), call))

    def _tick(self) -> None:
        for env in self.envs:
            self.one.heard(env.inc, self.now)
        self.one.learner_heard(5000, self.now)
        self.one.tick(self.now)
        self._decide()
        self._after(0.5, self._tick)

    def _decide(self) -> None:
        effects = self.one.decide(self.now)
        for entry in effects.deliver:
            self._after(LINE_S, partial(self._delivered, entry))
        for inc, grants in effects.limits:
            for _, limit, floor in grants:
                self._after(LINE_S, partial(self._granted, inc, limit, floor))
        for inc, _, acked in effects.acks:
            for _, lo, hi in acked:
                self._after(LINE_S, partial(self._acked, inc, lo, hi))
        assert not effects.recalls

    # ---- samplers -------------------------------------------------------------------------------

    def _granted(self, inc: int, limit: int, floor: int) -> None:
        env = self.envs[inc - 1]
        env.limit, env.floor = max(env.limit, limit), floor
        self._begin(env)

    def _acked(self, inc: int, lo: int, hi: int) -> None:
        env = self.envs[inc - 1]
        for seq in range(lo, hi):
            env.waits.append(max(0, env.version - env.sent.pop(seq) - 1))

    def _begin(self, env: Environment) -> None:
        if not env.running and env.started < env.limit and env.version >= env.floor:
            self._act(env)

    def _act(self, env: Environment) -> None:
        env.running.append(env.version)
        self._after(env.step_s * self.dice.uniform(0.8, 1.2), partial(self._answered, env))

    def _answered(self, env: Environment) -> None:
        oldest = env.version - versions_to_play(self.max_lag, min(env.waits))
        early = self.ends_early and env.running[0] < oldest and len(env.running) >= LEAST
        if len(env.running) < LENGTH and not early:
            self._act(env)
            return
        steps, env.running = env.running, []
        env.sent[env.started] = env.version
        lowest = min(env.sent)
        unroll = Unroll(env.inc, 0, env.started, lowest, steps[0], steps[-1], len(steps), 0)
        env.started += 1
        self._after(LINE_S, partial(self._arrived, unroll))
        self._begin(env)

    def _arrived(self, unroll: Unroll) -> None:
        self.one.unroll(unroll, (b"",), 1)
        self._decide()

    def _heard_of(self, env: Environment, version: int) -> None:
        env.version = version
        self.one.acts_with(env.inc, version)
        self._begin(env)

    # ---- the learner ----------------------------------------------------------------------------

    def _delivered(self, entry: Entry) -> None:
        self._held.append(entry)
        self._train()

    def _train(self) -> None:
        if self._busy or len(self._held) < self.batch:
            return
        self._busy = True
        taken = [self._held.popleft() for _ in range(self.batch)]
        for unroll in (entry.unroll for entry in taken):
            age = self.version - unroll.version_min, self.version - unroll.version_max
            self.ages.add([UnrollAge(*age, unroll.steps)])
            env = self.envs[unroll.inc - 1]
            env.trained += unroll.steps
            env.unrolls += 1
            env.short += unroll.steps < LENGTH
        self._after(self.learn_s, partial(self._trained, [entry.tag for entry in taken]))

    def _trained(self, tags: list[int]) -> None:
        self.version, self._busy = self.version + 1, False
        want = self.version * self.batch + (PREFETCH + 1) * self.batch

        def done(version: int = self.version) -> None:
            self.one.done(5000, ranges(sorted(tags)))
            self.one.learner_heard(5000, self.now, version=version, want=want)
            self._decide()

        self._after(LINE_S, done)
        for env in self.envs:
            self._after(2 * LINE_S, partial(self._heard_of, env, self.version))
        self._train()


def clock(*, samplers: int, batch: int, max_lag: int, load: float, slow: int = 1) -> Clock:
    """`load`: seconds of a learner's step, in those that the samplers need for a batch."""
    fast = samplers - slow
    learn_s = load * LENGTH * STEP_S * batch / fast
    speeds = [STEP_S] * fast + [10 * STEP_S] * slow
    return Clock(speeds, batch=batch, max_lag=max_lag, learn_s=learn_s)


@pytest.mark.parametrize("load", [0.1, 1.3, 3.0], ids=["quick", "busy", "slow"])
@pytest.mark.parametrize(
    ("samplers", "batch", "max_lag"), [(4, 2, 2), (8, 2, 2), (8, 4, 1), (8, 2, 4), (6, 1, 8)]
)
def test_with_a_slow_sampler_steps_are_young_when_they_are_trained(
    samplers: int, batch: int, max_lag: int, load: float
) -> None:
    made = clock(samplers=samplers, batch=batch, max_lag=max_lag, load=load)
    made.run(8.0)
    assert made.ages.figures()["lag_p99"] <= max_lag + 2
    *fast, slow = made.envs
    # At least what its speed gives: the fast wait for credit, too.
    assert slow.trained > 0.09 * sum(env.trained for env in fast) / len(fast)
    assert slow.short > 0.5 * slow.unrolls
    assert sum(env.short for env in fast) <= 0.05 * sum(env.unrolls for env in fast)


def test_without_it_they_are_not() -> None:
    made = clock(samplers=8, batch=2, max_lag=2, load=0.1)
    made.ends_early = False
    made.run(8.0)
    assert made.ages.figures()["lag_p99"] > 2 * (2 + 2)


@pytest.mark.parametrize("load", [0.1, 1.3])
def test_unrolls_of_equal_samplers_are_whole(load: float) -> None:
    made = clock(samplers=12, batch=4, max_lag=2, load=load, slow=0)
    made.run(4.0)
    assert sum(env.short for env in made.envs) == 0
