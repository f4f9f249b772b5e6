"""Hosts cut off from the broker: both ways, or one, for less than a lease and for longer."""

from tests.system.conftest import Place
from tests.system.harness.figures import pick
from tests.system.harness.trial import Trial
from tests.system.network.network import Network, net  # noqa: F401  # a fixture

# The lease of the small run, the longest pause of a link between two attempts, and a second.
_FLOW_S = 2.0 + 5.0 + 1.0
_WAYS = ("both", "to", "from")
_SHORT = [("both", 1.0), *((way, 3.0) for way in _WAYS)]
_LONG = [(way, seconds) for seconds in (1.0, 3.0, 6.0, 20.0, 60.0) for way in _WAYS]


def test_a_host_is_cut_off_and_comes_back(net: Network, place: Place) -> None:  # noqa: F811
    """Drops every packet between the sampler's (then the learner's) host and the broker's: both
    ways, only those to the broker, only those from it; for less than a lease and for longer.
    """
    hosts = net.host("sampler"), net.host("learner")
    broker = net.hub.broker(place)
    learner, sampler = hosts[1].learner(place), hosts[0].actor(place)
    trial = Trial(place, broker, learner, sampler)
    slow = []
    for host in hosts:
        for way, seconds in pick(_SHORT, _LONG):
            host.cut(way)
            trial.for_seconds(seconds)
            host.heal()
            flow_s = trial.healed()
            if flow_s > _FLOW_S:
                slow.append((host.namespace, way, seconds, flow_s))
    trial.end("partition")
    assert slow == []
