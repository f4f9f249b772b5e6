"""Checks what a step costs each part of a run, from looks written by hand."""

import pytest

from headrace.launch.local.part_costs import BROKER, LEARNER, SAMPLER, PartCosts
from headrace.launch.process.memory_use import Use

PARTS = {1: BROKER, 2: LEARNER, 3: SAMPLER, 4: SAMPLER}  # 5: the evaluator


def uses(*cpu_s: float) -> dict[int, Use]:
    """Returns what the processes 1, 2, 3 .. have used by now."""
    return {pid: Use(seconds, 40.0 * pid) for pid, seconds in enumerate(cpu_s, 1)}


def looked(*looks: tuple[float, float, dict[int, Use]]) -> PartCosts:
    costs = PartCosts()
    for now, unrolls, used in looks:
        costs.look(used, PARTS, unrolls, now)
    return costs


def test_costs_are_what_was_used_since_the_run_was_warm() -> None:
    costs = looked(
        (10.0, 0, uses(1, 9, 9, 9, 9)),
        (11.0, 5, uses(1, 10, 10, 10, 10)),  # trains
        (13.0, 10, uses(1, 20, 20, 20, 20)),  # is warm
        (15.0, 60, uses(1.1, 21, 20.5, 20.5, 20.2)),
        (17.0, 110, uses(1.2, 22, 21, 21, 20.4)),
    )
    found = costs.of_step(32, cores=2)
    assert found is not None
    steps = 100 * 32
    assert found["sampler_s"] == pytest.approx(2 / steps)
    assert found["learner_s"] == pytest.approx(2 / steps)
    assert found["broker_s"] == pytest.approx(0.2 / steps)
    assert found["busy"] == pytest.approx(4.6 / 8)
    assert found["sampler_mib"] == pytest.approx(140.0)
    other = costs.of_step(32, cores=64)
    assert other is not None
    assert other["busy"] == pytest.approx(4.6 / 12), "three processes fill three cores"


@pytest.mark.parametrize(
    "looks",
    [
        [],
        [(10.0, 5, uses(1, 1, 1, 1))],
        [(10.0, 5, uses(1, 1, 1, 1)), (12.0, 9, uses(2, 2, 2, 2))],
        [(10.0, 5, uses(1, 1, 1, 1)), (12.0, 9, uses(2, 2, 2, 2)), (13.0, 9, uses(3, 3, 3, 3))],
        [(10.0, 5, uses(1, 1)), (12.0, 9, uses(2, 2)), (13.0, 19, uses(3, 3))],  # no samplers
    ],
    ids=["never", "one look", "just warm", "nothing trained since", "samplers are elsewhere"],
)
def test_too_little_tells_nothing(looks: list[tuple[float, float, dict[int, Use]]]) -> None:
    assert looked(*looks).of_step(32, cores=2) is None


def test_a_process_that_is_started_again_costs_what_it_uses() -> None:
    again = {1: Use(2.0, 0), 2: Use(2.0, 0), 7: Use(0.5, 0), 4: Use(2.0, 0)}
    later = {1: Use(3.0, 0), 2: Use(3.0, 0), 7: Use(1.5, 0), 4: Use(3.0, 0)}
    costs = PartCosts()
    for now, used in ((0.0, uses(0, 0, 0, 0)), (2.0, uses(1, 1, 1, 1)), (3.0, again), (4.0, later)):
        parts = PARTS if now < 3 else {1: BROKER, 2: LEARNER, 7: SAMPLER, 4: SAMPLER}
        costs.look(used, parts, 10 * now + 1, now)
    found = costs.of_step(1, cores=2)
    assert found is not None
    assert found["learner_s"] == pytest.approx(2 / 20)
    assert found["sampler_s"] == pytest.approx(3 / 20)


def test_another_broker_counts_from_nothing() -> None:
    costs = looked(
        (0.0, 50, uses(0, 0, 0, 0)),
        (2.0, 100, uses(1, 1, 1, 1)),
        (3.0, 150, uses(2, 2, 2, 2)),
        (4.0, 5, uses(3, 3, 3, 3)),  # it was started again
        (5.0, 55, uses(4, 4, 4, 4)),
    )
    found = costs.of_step(1, cores=2)
    assert found is not None
    assert found["learner_s"] == pytest.approx(1 / 50)
