"""Three hosts and a spare one on a network as networks are, keys on: lines that are cut, that lose,
delay, double and hold back, and a broker that moves to another host and to another address.
"""

import time
from collections import defaultdict
from collections.abc import Iterator
from random import Random
from statistics import median
from typing import NamedTuple

import pytest

from tests.system.attacks.test_curve import Keys
from tests.system.conftest import LONG_S, RUN, Place, Process, until
from tests.system.harness.figures import LONG, pick, say
from tests.system.harness.trial import Trial
from tests.system.harness.watching import sockets
from tests.system.network.line import Condition
from tests.system.network.network import Host, Network, net  # noqa: F401  # a fixture

MINUTES = pick(0.0, 10.0)
BEAT_S, LEASE_S = pick((0.2, 1.0), (0.5, 3.0))
# Steps that last 1 ms and burn nothing: the network is what is looked at here, not the machine.
SLOW_STEPS = (
    RUN.replace('id = "CartPole-v1"', 'id = "headrace/Sleeper-v0"\nkwargs = {step_s = 0.001}')
    .replace("beat_s = 0.2", f"beat_s = {BEAT_S}")
    .replace("lease_s = 2.0", f"lease_s = {LEASE_S}")
    .replace("drain_s = 2.0", "drain_s = 20.0")
)
# A lease; an attempt to connect to who is gone, and the longest pause after it; a second.
_BACK_S = LEASE_S + 2.0 + 4.0 + 1.0
_LINES = ("broker", "learner", "samplers")
_WAYS = ("both", "to", "from")


class Fault(NamedTuple):
    """What befalls the network next."""

    kind: str  # cut, bad, moved, vanished, taken over
    seconds: float  # that it lasts
    line: str = ""  # whose
    way: str = "both"
    condition: Condition = Condition()


# One of each kind, for as long as it takes to be noticed.
_SHORT = [
    Fault("cut", 0.5, "samplers"),
    Fault("cut", LEASE_S + 0.5, "broker"),
    Fault("cut", LEASE_S + 0.5, "learner", "to"),
    Fault("cut", LEASE_S + 0.5, "samplers", "from"),
    Fault("bad", 3.0, "samplers", condition=Condition(0.05, 0.1, 0.05, 0.05, 10_000)),
    Fault("moved", 0.0),
    Fault("vanished", LEASE_S + 0.5),
    Fault("taken over", 0.0),
]


def _drawn(random: Random) -> Iterator[Fault]:
    """Rounds of all kinds, each in another order and of other sizes."""
    while True:
        cuts = [
            Fault("cut", random.choice((1.0, 5.0, 15.0)), line, way)
            for line, way in zip(random.sample(_LINES, 3), _WAYS, strict=True)
        ]
        bad = [
            Fault(
                "bad",
                10.0,
                line,
                condition=Condition(
                    delay_s=random.uniform(0.025, 0.15),
                    loss=random.uniform(0.05, 0.3),
                    twice=random.uniform(0.0, 0.1),
                    overtaken=random.uniform(0.0, 0.1),
                    kbit_s=random.choice((0.0, 1_000.0, 10_000.0)),
                ),
            )
            for line in random.sample(_LINES, 2)
        ]
        away_s = random.choice((1.0, 5.0, 15.0))
        moves = [Fault("moved", 0.0), Fault("vanished", away_s), Fault("taken over", away_s)]
        faults = [*cuts, *bad, *moves]
        yield from random.sample(faults, len(faults))


class Site:
    """The hosts, and the run on them."""

    def __init__(self, network: Network, place: Place) -> None:
        self._net = network
        self._place = place
        place.run = place.toml("run.toml", SLOW_STEPS)
        keys = Keys(place)
        self._homes = [network.hub, network.host("spare")]  # the broker is at the first
        self._lines = {name: network.host(name) for name in ("learner", "samplers")}
        self.brokers = [self._starts()]
        self.learner = self._lines["learner"].learner(place, "--key", keys.file("learner"))
        self.samplers = [
            self._lines["samplers"].actor(place, "--key", keys.file("actor"), "--name", name)
            for name in ("one", "two")
        ]
        self.trial = Trial(place, self.brokers[0], self.learner, *self.samplers)
        self.fewest = 1_000_000  # trained while a line was bad, of all times

    def suffers(self, fault: Fault) -> float:
        """Returns how long it took to recover, from when all was in order again."""
        getattr(self, "_" + fault.kind.replace(" ", "_"))(fault)
        return self.trial.healed(timeout_s=2 * LONG_S)

    def _host(self, fault: Fault) -> Host:
        return self._homes[0] if fault.line == "broker" else self._lines[fault.line]

    def _cut(self, fault: Fault) -> None:
        """Packets vanish; nobody is told."""
        self._host(fault).cut(fault.way)
        self.trial.for_seconds(fault.seconds)
        self._host(fault).heal()

    def _bad(self, fault: Fault) -> None:
        self._host(fault).becomes(fault.condition)
        self.fewest = min(self.fewest, self.trial.for_seconds(fault.seconds))
        self._host(fault).heal()

    def _moved(self, _: Fault) -> None:
        """The broker is stopped, another starts elsewhere, and the name leads there."""
        assert self.brokers[-1].term() == 0
        self._homes.reverse()
        self._net.broker_is_at(self._homes[0].address)
        self._replaced()

    def _vanished(self, fault: Fault) -> None:
        """The broker's host is gone without a word; then as before."""
        self._dies(fault)
        self._net.broker_is_at(self._homes[0].address)
        self._replaced()

    def _taken_over(self, fault: Fault) -> None:
        """The same, but the address moves, not the name."""
        self._dies(fault)
        self._net.exchange_addresses(*self._homes)
        self._replaced()

    def _dies(self, fault: Fault) -> None:
        """Its host will not be heard of until it is home to a broker again."""
        self._homes[0].cut()
        self.brokers[-1].kill()
        self.trial.without(self.brokers[-1])
        self.trial.for_seconds(fault.seconds)
        self._homes.reverse()

    def _replaced(self) -> None:
        self._homes[0].heal()
        self.brokers.append(self._starts())
        self.trial.replaces(self.brokers[-2], self.brokers[-1])

    def _starts(self) -> Process:
        made = self._homes[0].broker(self._place)
        made.says("run small at .* for 4 keys")
        return made


def test_a_real_network(net: Network, place: Place) -> None:  # noqa: F811
    """Cuts both ways and one way, bad lines, and moves of the broker; then the account is exact."""
    site = Site(net, place)
    took: defaultdict[str, list[float]] = defaultdict(list)
    began = time.monotonic()
    for fault in _drawn(Random(1)) if LONG else _SHORT:
        if LONG and time.monotonic() - began > 60 * MINUTES:
            break
        kind = f"cut {fault.way}" if fault.kind == "cut" else fault.kind
        took[kind].append(site.suffers(fault))
    site.trial.end("real network", brokers=len(site.brokers), fewest_in_bad=site.fewest)
    for kind, times in took.items():
        say(
            f"real network, back after {kind}",
            times=len(times),
            median_s=median(times),
            most_s=max(times),
        )
    audit = place.headrace("audit", str(place.out))
    assert audit.ends() == 0, audit.text()
    assert site.fewest > 0
    assert [times for times in took.values() if max(times) > _BACK_S] == []
    for process in (site.learner, *site.samplers):
        assert "Traceback" not in process.text()


@pytest.mark.skipif(not LONG, reason="half a minute of waiting: HEADRACE_SOAK=1")
def test_a_host_that_vanished_is_forgotten(net: Network, place: Place) -> None:  # noqa: F811
    """The broker goes on telling it what is new while others train, and nobody acknowledges it: the
    connections must end as soon as those on which nothing is under way."""
    place.run = place.toml("run.toml", SLOW_STEPS)
    broker, host, near = net.hub.broker(place), net.host("samplers"), net.host("near")
    near.learner(place)
    near.actor(place, "--name", "near")
    place.trains(20)
    before = sockets(broker.pid)
    sampler = host.actor(place, "--name", "far")
    broker.says("actor far joins")
    place.trains(20)
    host.cut()
    sampler.kill()
    began = time.monotonic()
    broker.says("fell silent")
    gone = lambda: sockets(broker.pid) <= before  # noqa: E731
    until(gone, "its sockets to be free", timeout_s=60.0)
    say("real network, a host that vanished", free_s=time.monotonic() - began)
