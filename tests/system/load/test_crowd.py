"""Many samplers at one broker: all get in at once, all get their share, and each costs little."""

import pytest

from headrace.launch.bench import crowd
from tests.system.harness.figures import LONG, pick, say

pytestmark = pytest.mark.alone


def test_a_crowd_gets_in_at_once_and_every_one_gets_its_share() -> None:
    """Connects 100 samplers (1,000 in the soak) at one moment and lets them send as fast as they
    can. They are real ends on real sockets, 50 or 100 in a process.

    libzmq alone keeps up to 70 kB for a connection that was busy, and a sampler has two.
    """
    samplers = pick(100, 1000)
    figures = crowd.measure(
        samplers=samplers,
        batch=samplers,
        processes=pick(2, 10),
        size=1024,
        seconds=pick(3.0, 600.0),
        weights=4096,
    )
    say("crowd", **figures)
    assert figures["connected_s"] <= pick(20.0, 5.0)
    assert figures["jain"] >= pick(0.9, 0.95)
    assert figures["shares"][0] > 0
    assert figures["idle_kb_each"] <= 75
    assert figures["loaded_kb_each"] <= 200
    assert figures["descriptors"] <= 2 * samplers + 100
    assert figures["hellos_each"] <= pick(20, 10)  # also those that found no connection yet
    assert figures["exact"]
    assert (figures["lost"], figures["twice"], figures["unaccounted"]) == (0, 0, 0)
    assert figures["abandoned"] < samplers, "more than the rest that fills no batch"
    assert not LONG or figures["unrolls_per_s"] >= samplers
