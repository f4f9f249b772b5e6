"""The quick ones of the learning gates, one seed each: what should learn, learns.

`make learn` runs all of them with three seeds.
"""

import pytest

from headrace.launch.bench import learning_gates

QUICK = (
    "cartpole-impala",
    "cartpole-appo",
    "pendulum-appo",
    "multi",
    "parts",
    "masked",
    "tracker",
    "catch",
)


@pytest.mark.parametrize("name", QUICK)
def test_it_learns(name: str) -> None:
    found = learning_gates.run_gate(name, 1)
    assert found["passed"] == [1], found
