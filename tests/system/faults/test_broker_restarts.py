"""The broker dies under a crowd, again and again, and nothing is lost."""

import itertools
import re
import signal
import time
import urllib.request
from pathlib import Path

import pytest

from headrace.launch.bench.simulated.cluster import SimulatedCluster
from headrace.launch.bench.simulated.processes import LearnerSpec, SamplersSpec
from tests.system.harness.figures import pick, say

pytestmark = pytest.mark.alone

RESTARTS = pick(5, 100)
SAMPLERS = pick(100, 200)
PROCESSES = 2
BATCH = SAMPLERS // 4
# A sampler may say HELLO without and with its streams, and once more when both ends speak at once.
HELLOS = 4


class Life:
    """One broker: when it began, listened and died, by the clock that all processes share."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.cluster = cluster
        self.began = time.monotonic()
        self.pid = cluster.broker("--ledger", cluster.ledger, "--metrics-port", "0")
        self.listened = time.monotonic()
        self.died = float("inf")
        self.descriptors = 0  # most at once
        self.hellos = 0

    def lives_until_all_are_back(self, crowd: list[int]) -> None:
        """Every sampler had something acknowledged by this one; watched meanwhile."""

        def back() -> bool:
            found = len(list(Path(f"/proc/{self.pid}/fd").iterdir()))
            self.descriptors = max(self.descriptors, found)
            return all(
                one["acknowledged_at"] > self.listened
                for pid in crowd
                for one in self.cluster.report(pid).get("samplers", [{"acknowledged_at": 0.0}])
            )

        self.cluster.until(back, "every sampler is back in flow")

    def dies(self, by: signal.Signals) -> None:
        log = (self.cluster.folder / "broker.log").read_text()
        port = re.findall(r"metrics at port (\d+)", log)[-1]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
            text = page.read().decode()
        found = re.search(r'messages_total\{dir="in",type="hello"\} (\S+)', text)
        assert found is not None
        self.hellos = int(float(found[1]))
        self.cluster.end([self.pid], by)
        self.died = time.monotonic()


def test_restarts_of_the_broker_cost_seconds_and_no_unroll() -> None:
    """Ends the broker with SIGKILL and SIGTERM in turn, 5 times under 100 samplers (100 times under
    200 in the soak), each time as soon as every sampler is back. Back in flow: from the start of
    the new broker's process to a sampler's next acknowledged unroll.
    """
    began = time.monotonic()
    with SimulatedCluster(pacing={"batch_unrolls": BATCH, "max_lag": 8}) as cluster:
        first = Life(cluster)
        crowd = [
            cluster.start(
                SamplersSpec(
                    cluster.address,
                    str(cluster.folder / f"samplers-{n}.json"),
                    rate=5.0,
                    count=SAMPLERS // PROCESSES,
                    ledger=cluster.ledger,
                )
            )
            for n in range(PROCESSES)
        ]
        learner = cluster.start(
            LearnerSpec(
                cluster.address,
                cluster.run,
                str(cluster.folder / "learner.json"),
                ledger=cluster.ledger,
            )
        )
        first.lives_until_all_are_back(crowd)
        steady = len(list(Path(f"/proc/{first.pid}/fd").iterdir()))
        first.dies(signal.SIGKILL)
        lives = []
        ways = itertools.cycle((signal.SIGTERM, signal.SIGKILL))
        for _ in range(RESTARTS):
            life = Life(cluster)
            life.lives_until_all_are_back(crowd)
            lives.append(life)
            if len(lives) < RESTARTS:
                life.dies(next(ways))
        cluster.end(crowd)
        cluster.end([learner])
        lives[-1].dies(signal.SIGTERM)
        account = cluster.account()
        backs = [
            # of one sampler: (welcomed, first acknowledged), one pair for each broker
            [tuple(pair) for pair in sampler]
            for pid in crowd
            for sampler in cluster.report(pid)["all_lives"]
        ]
    whole, listening = _times(lives, backs)
    worst = max(life.descriptors for life in lives)
    hellos = max(life.hellos for life in lives)
    say(
        "broker restarts",
        faults=RESTARTS,
        samplers=SAMPLERS,
        generated=account.generated,
        **account.outcomes,
        lost=account.in_flight,
        twice=account.twice,
        back_p50_s=_quantile(whole, 0.5),
        back_p99_s=_quantile(whole, 0.99),
        back_max_s=whole[-1],
        listening_p99_s=_quantile(listening, 0.99),
        descriptors=worst,
        steady=steady,
        hellos_each=hellos / SAMPLERS,
        seconds=time.monotonic() - began,
    )
    assert account.exact(), account
    assert (account.in_flight, account.twice, account.untrue) == (0, 0, 0)
    assert len(whole) == RESTARTS * SAMPLERS, "a sampler was not back in every life"
    assert account.outcomes["abandoned"] < BATCH, "more than the rest that fills no batch"
    assert _quantile(whole, 0.99) <= pick(8.0, 3.0)
    assert worst <= 2 * steady
    assert hellos <= HELLOS * SAMPLERS + 10


def _times(
    lives: list[Life], backs: list[list[tuple[float, float | None]]]
) -> tuple[list[float], list[float]]:
    """Seconds from each broker's start, and from its listening, to each sampler's first answer."""
    whole, listening = [], []
    for life in lives:
        for sampler in backs:
            for welcomed, first in sampler:
                if life.began <= welcomed < life.died and first is not None:
                    whole.append(first - life.began)
                    listening.append(first - life.listened)
    return sorted(whole), sorted(listening)


def _quantile(times: list[float], part: float) -> float:
    return times[min(len(times) - 1, int(part * len(times)))]
