"""The quick ones of the learning gates, one seed each: what should learn, learns.

`make learn` runs all of them with three seeds.
"""

import pytest

from launch.bench import learn

QUICK = (
    "cartpole-impala", "cartpole-appo", "pendulum-appo", "multi", "parts", "masked", "tracker",
    "catch",
)  # fmt: skip


@pytest.mark.parametrize("name", QUICK)
def test_it_learns(name: str) -> None:
    # Samplers that run free make each run another one, whatever its seed: one in dozens is late.
    # What broke learning breaks it twice.
    late = []
    for seed in (1, 2):
        found = learn.gate(name, seed)
        if found["passed"] == [seed]:
            return
        late.append(found)
    raise AssertionError(late)
