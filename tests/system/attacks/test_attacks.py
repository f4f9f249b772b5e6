"""Whole bad messages at a live broker; honest samplers and a learner beside must not notice."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.launch.bench.simulated import processes
from headrace.launch.bench.simulated.latency import Latencies
from tests.system.attacks.liars import Attack, Tap
from tests.system.commands.test_metrics import by, port_of, scrape, value
from tests.system.conftest import Place, Process, until
from tests.system.harness.figures import LONG, pick, say

pytestmark = pytest.mark.alone

RUN = """
[run]
name = "attacked"
[env]
id = "CartPole-v1"
[pacing]
batch_unrolls = 2
max_lag = 10
[broker]
beat_s = 0.2
lease_s = 2.0
"""
RATE_S = 1000.0  # bad messages a second: what one core of an attacker beside us may well send


class Flow:
    """Honest samplers and a learner, simulated: real ends, real sockets, real ledgers."""

    def __init__(self, place: Place, limits: str = "", rate: float = 25.0) -> None:
        self.place = place
        self.rate = rate  # unrolls a second of each of four samplers
        place.run = place.toml("attacked.toml", RUN + limits)
        self.broker = place.broker("--metrics-port", "0")
        self.port = port_of(self.broker)
        self.tap = Tap(f"ipc://{place.folder}/tap", place.ipc)
        self.tap.start()
        self.learner = self._start(
            processes.LearnerSpec(
                broker=place.ipc,
                run=place.run,
                report=self._report("learner"),
                ledger=str(place.ledger),
                weights_bytes=2000,
            )
        )
        self.samplers = [self._sampler("near", place.ipc), self._sampler("tapped", self._tapped())]
        until(lambda: self.settled("near") > 50 and self.settled("tapped") > 50, "a flow")

    def _start(self, role: processes.Role) -> Process:
        return self.place.python(*processes.arguments(role))

    def _tapped(self) -> str:
        return f"ipc://{self.place.folder}/tap"

    def _report(self, name: str) -> str:
        return str(self.place.folder / f"{name}.json")

    def _sampler(self, name: str, broker: str) -> Process:
        spec = processes.SamplersSpec(
            broker=broker,
            report=self._report(name),
            count=2,
            streams=2,
            rate=self.rate,
            ledger=str(self.place.ledger),
            every_s=0.1,
            drain_s=6.0,
        )
        return self._start(spec)

    def settled(self, name: str) -> int:
        found = processes.read(Path(self._report(name)))
        return sum(s["settled"] for s in (found or {}).get("samplers", ()))

    def latencies(self, name: str) -> Latencies:
        found = json.loads(Path(self._report(name)).read_text())
        return Latencies({int(step): count for step, count in found["latencies"].items()})

    def p99(self, name: str, since: Latencies) -> float:
        return Latencies(self.latencies(name).counts - since.counts).quantile(0.99)

    def incarnations(self) -> list[int]:
        """Of the honest samplers: they stand in their ledgers."""
        texts = [path.read_text(errors="replace") for path in self.place.ledger.glob("actor-*")]
        return sorted({int(inc) for text in texts for inc in re.findall(r"^G (\d+) ", text, re.M)})

    def rss_mb(self) -> float:
        text = Path(f"/proc/{self.broker.pid}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+) kB", text)[0]) / 1024

    def errors(self) -> dict[str, float]:
        return by(scrape(self.port)["headrace_broker_protocol_errors"], "reason")

    def ends(self) -> None:
        """Everybody leaves; the books are right to the last unroll."""
        for process in (*self.samplers, self.learner):
            assert process.term() == 0, process.text()
        assert value(scrape(self.port)["headrace_broker_ledger_unaccounted"]) == 0
        self.tap.close()
        assert self.broker.term() == 0, self.broker.text()
        assert "Traceback" not in self.broker.text()


@pytest.fixture
def flow(place: Place) -> Iterator[Flow]:
    made = Flow(place)
    try:
        yield made
    finally:
        made.tap.close()


def test_bad_messages_of_all_kinds_change_nothing(flow: Flow) -> None:
    """Sends 5,000 bad messages (soak: 2 * 10^5) over seven connections: nonsense, lies of a
    sampler, of a learner and of others, impossible HELLOs, with the incarnations of the honest
    samplers; and what two of these said, again, by a stranger. One connection never reads its
    answers."""
    count = pick(5_000, 200_000)
    start = flow.latencies("near")
    time.sleep(pick(3.0, 60.0))
    quiet = flow.p99("near", start)
    attack = Attack(flow.place.ipc, flow.incarnations(), "simulated", seed=5)
    heard = list(flow.tap.heard)
    for _ in range(100):  # buffers have grown, tables are there
        attack.strike(heard)
    before, base, rss = flow.settled("near"), flow.latencies("near"), flow.rss_mb()
    began = time.monotonic()
    while attack.sent < count:
        attack.strike(heard)
        due = began + attack.sent / RATE_S
        time.sleep(max(0.0, due - time.monotonic()))
    seconds = time.monotonic() - began
    p99, grown, errors = flow.p99("near", base), flow.rss_mb() - rss, flow.errors()
    assert flow.settled("near") > before + 25 * seconds / 2, "the flow stands still"
    attack.close()
    flow.ends()
    account = flow.place.account()
    assert account.exact()
    say(
        "attacks",
        bad=attack.sent,
        refused=int(sum(errors.values())),
        quiet_p99_ms=1000 * quiet,
        p99_ms=1000 * p99,
        rss_mb=grown,
        generated=account.generated,
        **account.outcomes,
        lost=account.in_flight,
        twice=account.twice,
        unaccounted=account.unaccounted(),
        seconds=seconds,
    )
    assert {name for name, times in errors.items() if times} >= {
        "malformed",
        "protocol",
        "unknown",
        "unexpected",
        "identity",
        "credit",
        "numbers",
        "size",
        "hello",
    }
    assert grown < 10
    assert p99 <= pick(max(5 * quiet, 0.5), 2 * max(quiet, 0.01)), (p99, quiet)
    assert (account.in_flight, account.twice, account.unaccounted()) == (0, 0, 0)
    assert len(flow.broker.lines()) < 300 + 25 * (seconds + 30)
    assert not LONG or attack.sent >= 10**5


def test_who_sends_faster_than_it_may_loses_nothing(place: Place) -> None:
    """Lets every peer, the learner too, send 60 messages a second, while the samplers would send
    twice that: unrolls, PINGs, DONEs, announcements and chunks are dropped by chance."""
    flow = Flow(place, "peer_messages_s = 60.0\n", rate=100.0)
    try:
        began, before = time.monotonic(), flow.settled("near")
        until(lambda: flow.errors()["rate"] > pick(100, 10_000), "drops", timeout_s=600.0)
        until(lambda: flow.settled("near") > before + 100, "progress")
        seconds, dropped = time.monotonic() - began, flow.errors()["rate"]
        flow.ends()
    finally:
        flow.tap.close()
    account = place.account()
    say(
        "over_rate",
        dropped=int(dropped),
        generated=account.generated,
        **account.outcomes,
        lost=account.in_flight,
        twice=account.twice,
        unaccounted=account.unaccounted(),
        seconds=seconds,
    )
    assert account.exact()
    assert (account.in_flight, account.twice, account.unaccounted()) == (0, 0, 0)
