"""Lines that lose packets, and lines that are slow."""

import math

from tests.system.conftest import LONG_S, RUN, Place, until
from tests.system.harness.figures import pick
from tests.system.harness.trial import Trial
from tests.system.network.line import Condition
from tests.system.network.network import Host, Network, net  # noqa: F401  # a fixture

_WINDOW_S = 10.0  # in each of which something must be trained
# Unrolls: ten versions, so weights went over the line as well, and more than were under way.
_ENOUGH = 20
# A lease as long as a user has it; the default weights are 2 kB.
_RUN = RUN.replace("lease_s = 2.0", "lease_s = 5.0")
# 270 kB are two seconds of 1 Mbit/s. With every other round trip lost they would take minutes: what
# TCP carries then is a few kB a second.
_LARGE = _RUN.replace("hidden = [16]", "hidden = [180, 180]")
_SLOW = Condition(kbit_s=1000)


def _endures(trial: Trial, host: Host, condition: Condition) -> int:
    """The fewest unrolls trained in a window while its line is so."""
    host.becomes(condition)
    windows = range(pick(1, 6))
    fewest = min(trial.for_seconds(_WINDOW_S, enough=pick(_ENOUGH, math.inf)) for _ in windows)
    host.heal()
    assert trial.healed() < LONG_S
    return fewest


def test_a_line_loses_packets(net: Network, place: Place) -> None:  # noqa: F811
    """Drops 30 % of the packets of each direction between the sampler's host and the broker's."""
    place.toml("run.toml", _RUN)
    samplers = net.host("sampler")
    broker = net.hub.broker(place)
    trial = Trial(place, broker, net.host("learner").learner(place), samplers.actor(place))
    fewest = _endures(trial, samplers, Condition(loss=0.3))
    trial.end("lossy", fewest_in_a_window=fewest)
    assert "acts with other weights" not in broker.text()
    assert fewest > 0


def test_lines_are_slow(net: Network, place: Place) -> None:  # noqa: F811
    """Lets 1 Mbit/s pass between the sampler's host and the broker's; then between the learner's
    host and the broker's."""
    place.toml("run.toml", _LARGE)
    samplers, learners = net.host("sampler"), net.host("learner")
    broker = net.hub.broker(place)
    trial = Trial(place, broker, learners.learner(place), samplers.actor(place))
    slow = _endures(trial, samplers, _SLOW)
    sending = _endures(trial, learners, _SLOW)
    trial.end("slow", fewest_sampler=slow, fewest_learner=sending)
    assert "acts with other weights" not in broker.text()
    assert min(slow, sending) > 0


def test_a_slow_line_beside_a_fast_one(net: Network, place: Place) -> None:  # noqa: F811
    """Lets 1 Mbit/s pass between one sampler's host and the broker's, while another keeps the
    learner busy: versions come faster than the line carries one, and it must get some all the same.
    """
    place.toml("run.toml", _LARGE)
    slow, near, learners = net.host("slow"), net.host("near"), net.host("learner")
    broker = net.hub.broker(place)
    learner = learners.learner(place)
    far = slow.actor(place, "--name", "far")
    broker.says("actor far joins", timeout_s=4 * LONG_S)
    beside = near.actor(place, "--name", "near")
    broker.says("actor near joins", timeout_s=4 * LONG_S)
    trial = Trial(place, broker, learner, far, beside)
    (own,) = place.ledger.glob(f"actor-{_inc(place, 'far')}*.log")
    slow.becomes(_SLOW)
    trial.for_seconds(3.0)
    before = own.read_bytes().count(b"G ")
    trial.for_seconds(pick(3.0, 60.0))
    played: int = until(lambda: own.read_bytes().count(b"G ") - before, "far plays", timeout_s=20.0)
    slow.heal()
    trial.healed()
    trial.end("slow beside fast", played_slow=played)
    assert "fell silent" not in far.text()


def _inc(place: Place, name: str) -> str:
    """The incarnation of a sampler, from its journal's first line."""
    for path in place.ledger.glob("actor-*.log"):
        role, inc, said = path.read_text().splitlines()[0].split()[1:4]
        if (role, said) == ("actor", name):
            return inc
    raise AssertionError(f"no journal of {name}")
