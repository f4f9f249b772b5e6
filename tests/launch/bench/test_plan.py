"""Checks what `headrace bench plan` predicts."""

import pytest

from headrace.launch.bench import plan
from headrace.launch.plan.costs import Costs


def costs(length: int) -> Costs:
    """1 ms for a step and 16 ms for an unroll, and so on."""
    return Costs(
        sampler_s=1e-3 + 16e-3 / length, learner_s=1e-4 + 8e-3 / length, broker_s=1e-3 / length
    )


@pytest.mark.parametrize("times", [1, 2, 3, 4])
def test_costs_between_two_lengths_are_a_line_over_their_reciprocals(times: int) -> None:
    found = plan.at_length(costs(16), costs(64), times=times)
    wanted = costs(16 * times)
    for part in ("sampler_s", "learner_s", "broker_s"):
        assert getattr(found, part) == pytest.approx(getattr(wanted, part))


def test_samplers_and_a_length_are_predicted() -> None:
    found = {
        case.sets: case.predicted
        for case in plan.cases(costs(16), costs(64), length=16, samplers=2)
    }
    assert list(found) == [
        ("actor.count=1",),
        ("actor.count=2",),
        ("actor.count=4",),
        ("unroll.length=32",),
    ]
    assert found["actor.count=1",] <= 1 / costs(16).sampler_s
    assert found["unroll.length=32",] > found["actor.count=2",]
