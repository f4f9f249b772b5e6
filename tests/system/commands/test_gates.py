"""The quick ones of the learning gates, one seed each: what should learn, learns.

`make learn` runs all of them with three seeds. cartpole-appo is the run of the guide: see there.
"""

import dataclasses

import pytest

from headrace.launch.bench.gates import learning_gates

QUICK = (
    "cartpole-impala",
    "tmaze-10-ppo",
    "pendulum-appo",
    "multi",
    "parts",
    "masked",
    "tracker",
    "catch",
)
# Where the gate's own goal takes long, one on the way to it, far above what chance brings: that is
# about -1200 for Pendulum, and for Catch -0.55, where 0.2 takes three fifths of the way.
NEARER = {"pendulum-appo": -500.0, "catch": 0.2}


@pytest.mark.parametrize("name", QUICK)
def test_it_learns(name: str) -> None:
    gate = learning_gates.GATES[name]
    nearer = dataclasses.replace(gate, goal=NEARER.get(name, gate.goal))
    found = learning_gates.run_gate(name, nearer, 1)
    assert found["passed"] == [1], found
