"""A node's one connection: cut, lossy, slow, and its relay stopped or killed, under three samplers.

Whatever happens to it, every unroll has its outcome, and the samplers go on.
"""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.system.conftest import RUN, Place, Process, children, until
from tests.system.harness.figures import pick
from tests.system.harness.trial import Trial
from tests.system.network.line import Condition
from tests.system.network.network import Network, net  # noqa: F401  # a fixture

SAMPLERS = 3
# Long enough for a line that carries every other packet, short enough to be outlasted.
_RUN = RUN.replace("lease_s = 2.0", "lease_s = 4.0").replace("drain_s = 2", "drain_s = 20")
# Two seconds of 1 Mbit/s for each version of the weights; unrolls go beside them.
_LARGE = _RUN.replace("hidden = [16]", "hidden = [180, 180]")


def relay_of(node: Process) -> int:
    """Returns the pid of its relay; 0 = there is none now."""
    return next((pid for pid, name in children(node.pid).items() if name == "relay"), 0)


def connections(pid: int) -> int:
    """Counts the TCP connections of its host."""
    table = Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
    return sum(1 for line in table if line.split()[3] == "01")


@pytest.mark.slow
def test_three_samplers_and_one_line_that_fails_in_every_way(
    net: Network,  # noqa: F811
    place: Place,
) -> None:
    place.toml("run.toml", _RUN)
    samplers, learners = net.host("sampler"), net.host("learner")
    broker = net.hub.broker(place)
    node = samplers.node(place, "--samplers", str(SAMPLERS))
    trial = Trial(place, broker, learners.learner(place), node)
    until(lambda: broker.text().count(" joins") >= SAMPLERS + 2, "all join")
    # One for messages, one on which weights are announced.
    assert connections(node.pid) == 2
    for way, seconds in pick([("both", 1.0), ("from", 5.0), ("both", 6.0)], [("to", 30.0)] * 5):
        samplers.cut(way)
        trial.for_seconds(seconds)
        samplers.heal()
        trial.healed()
    samplers.becomes(Condition(loss=0.3))
    trial.for_seconds(10.0, enough=40)
    samplers.heal()
    trial.healed()
    relay = until(lambda: relay_of(node), "a relay")
    os.kill(relay, signal.SIGSTOP)
    until(lambda: "fell silent" in broker.text(), "its samplers are missed")
    time.sleep(1.0)
    os.kill(relay, signal.SIGCONT)
    trial.healed()
    os.kill(relay, signal.SIGSTOP)  # for good: the node sees to it
    until(lambda: "relay does not report; it is killed" in node.text(), "the node kills it")
    until(lambda: relay_of(node) not in (0, relay), "another relay")
    trial.healed()
    trial.end("a node's line")
    assert "speaks as another" not in broker.text()


@pytest.mark.slow
def test_weights_and_unrolls_share_a_slow_line(net: Network, place: Place) -> None:  # noqa: F811
    """1 Mbit/s between the node and the broker: beats, unrolls and weights of 270 kB."""
    place.toml("run.toml", _LARGE)
    samplers = net.host("sampler")
    broker = net.hub.broker(place)
    node = samplers.node(place, "--samplers", str(SAMPLERS))
    trial = Trial(place, broker, net.host("learner").learner(place), node)
    before = broker.text().count("fell silent")
    samplers.becomes(Condition(kbit_s=1000))
    trained = trial.for_seconds(pick(20.0, 120.0))
    silent = broker.text().count("fell silent") - before
    samplers.heal()
    trial.healed()
    trial.end("a node's slow line", through_it=trained, silent=silent)
    assert trained > 0
    assert silent == 0
