"""A learner at one per cent of its speed: what cannot be trained must not be sampled either."""

import signal
import time

import pytest

from tests.system.conftest import Place, until
from tests.system.harness.chaos import RUN, Role, System
from tests.system.harness.figures import pick, say
from tests.system.harness.tally import tally
from tests.system.harness.watching import held, trained_per_s

pytestmark = pytest.mark.alone

SECONDS = pick(6.0, 300.0)
RATE_S = pick(3.0, 5.0)  # over which a rate is measured
LIMIT_MB = 48.0
# Quick to make and large to hold: an unroll has 300 kB.
WIDE = """
import gymnasium
import numpy as np

class Wide(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2048,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    seen = np.full(2048, 0.1, np.float32)

    def reset(self, *, seed=None, options=None):
        return self.seen, {}

    def step(self, action):
        return self.seen, 0.0, False, False, {}
"""
# Memory is what bounds the queue here, not pacing: versions without end.
LARGE = (
    RUN.replace('id = "CartPole-v1"', 'id = "wide:Wide"')
    .replace("max_lag = 3", "max_lag = 10000\nmax_lag_hard = 20000")
    .replace("lease_s = 1.5", f"lease_s = 3.0\nqueue_mb = {LIMIT_MB}")
)


def test_samplers_wait_for_a_slow_learner(place: Place, tcp: str) -> None:
    """The learner runs 10 ms of each second (SIGSTOP and SIGCONT). The broker fills up to its limit
    and no further, samplers wait without anything stale or shed, and all is as before once the
    learner is itself again."""
    place.toml("wide.py", WIDE)
    system = System(place, tcp, samplers=2, learners=0, run=LARGE, allow=("wide",))
    broker, samplers = system.roles["broker"], [system.roles[name] for name in system.samplers]
    for name in system.samplers:
        broker.says(f"actor {name} joins")
    base_mb, learner = held(broker.pid).rss_mb, system.start("learner")
    # An unroll is trained in a tenth less time while the queue has not filled: it is in the cache.
    until(lambda: queue_mb(broker) > 0.9 * LIMIT_MB, "the queue to fill")
    until(place.trained, "the learner to train")  # the queue may be full before it has begun
    full_rate = trained_per_s(place, RATE_S)
    waited = [credit_s(role.metrics()) for role in samplers]

    before, began, most_queue, most_mb = place.trained(), time.monotonic(), 0.0, 0.0
    while time.monotonic() - began < SECONDS:
        learner.signal(signal.SIGSTOP)
        stopped = time.monotonic()
        most_queue = max(most_queue, queue_mb(broker))
        most_mb = max(most_mb, held(broker.pid).rss_mb)
        time.sleep(max(0.0, stopped + 0.99 - time.monotonic()))
        learner.signal(signal.SIGCONT)
        time.sleep(0.01)
    slow_rate = (place.trained() - before) / SECONDS
    waits = [credit_s(r.metrics()) - was for r, was in zip(samplers, waited, strict=True)]

    back = [trained_per_s(place, pick(1.0, 2.0)) for _ in range(5)]
    settled_rate = trained_per_s(place, RATE_S)
    lost = system.unsettled()
    system.finish()
    found = tally(place.ledger)
    outcomes = found.outcomes()
    say(
        "slow learner",
        generated=len(found.generated),
        **outcomes,
        lost=len(lost),
        twice=found.twice(),
        full_per_s=full_rate,
        slow_per_s=slow_rate,
        back_per_s=[round(rate) for rate in back],
        settled_per_s=settled_rate,
        queue_mb=most_queue,
        limit_mb=LIMIT_MB,
        rss_base_mb=base_mb,
        rss_most_mb=most_mb,
        seconds=SECONDS,
    )
    assert slow_rate < 0.2 * full_rate
    assert 0.8 * LIMIT_MB < most_queue <= LIMIT_MB
    # Beside the unrolls it keeps some versions of the weights, 8 MiB of them at most.
    assert most_mb <= base_mb + 1.2 * LIMIT_MB + 8
    assert min(waits) > 0.5 * SECONDS
    assert (outcomes["stale"], outcomes["shed"], found.untrue(), found.twice()) == (0, 0, 0, 0)
    assert lost == set()
    # Of what the machine gives now: a second's rate varies by a tenth there without any fault, and
    # drifts as much within a minute.
    assert max(back) >= 0.95 * min(full_rate, settled_rate)
    assert settled_rate >= 0.8 * full_rate


def queue_mb(broker: Role) -> float:
    return broker.metrics()["headrace_broker_queue_bytes"] / 2**20


def credit_s(metrics: dict[str, float]) -> float:
    """How long it has waited for the right to begin an unroll."""
    return metrics['headrace_actor_wait_seconds_total{phase="credit"}']
