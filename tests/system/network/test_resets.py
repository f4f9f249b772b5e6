"""Connections that end without a word, and connections that stand still: a proxy does it."""

import pytest

from tests.system.conftest import Place, until
from tests.system.harness.figures import LONG, pick
from tests.system.harness.trial import Trial
from tests.system.network.proxy import Proxy


def _beyond(proxy: Proxy, place: Place, tcp: str) -> Trial:
    """A broker; learner and sampler reach it through the proxy only."""
    broker = place.broker(bind=tcp)
    broker.says("run small at")
    learner, sampler = place.learner(broker=proxy.endpoint), place.actor(broker=proxy.endpoint)
    return Trial(place, broker, learner, sampler)


@pytest.mark.alone  # beside others one second may be too short to connect and train
def test_every_connection_is_reset_each_second(place: Place, tcp: str) -> None:
    """Ends every connection to the broker by a TCP reset, in the middle of what it carries."""
    with Proxy(tcp) as proxy:
        trial = _beyond(proxy, place, tcp)
        proxy.delay_s = 0.05  # so that something is always on its way, and lost
        idle = []  # seconds between two resets, and whether nothing was trained in it
        for _ in range(pick(16, 60)):
            idle.append(trial.for_seconds(1.0) == 0)
            until(lambda: proxy.carried() >= 2, "two connections")
            assert proxy.reset() >= 2
            trial.faults += 1
        trial.healed()
        trial.end("resets", connections=proxy.resets, idle_s=sum(idle))
    # A quarter of all is usual, half of so few on a busy machine; ten in a row are too many on any.
    assert [True] * 10 not in [idle[at : at + 10] for at in range(len(idle))]
    assert not LONG or sum(idle) <= 20


def test_connections_stand_still(place: Place, tcp: str) -> None:
    """Carries no byte any more, though every connection stays open; for longer than a lease."""
    with Proxy(tcp) as proxy:
        trial = _beyond(proxy, place, tcp)
        for seconds in pick((3.0,), (1.0, 3.0, 20.0)):
            proxy.stall()
            trial.for_seconds(seconds)
            proxy.flow()
            assert trial.healed() < 8.0
        trial.end("stalls")


def test_the_way_is_long(place: Place, tcp: str) -> None:
    """Delays every byte by a quarter of a second in each direction: more than a beat there and
    back, so that several beats are always under way.
    """
    with Proxy(tcp) as proxy:
        trial = _beyond(proxy, place, tcp)
        proxy.delay_s = 0.25
        trained = trial.for_seconds(pick(3.0, 60.0))
        proxy.reset()
        trial.for_seconds(2.0)
        trial.faults = 2
        trial.end("delay", trained_meanwhile=trained)
    assert trained > 0
