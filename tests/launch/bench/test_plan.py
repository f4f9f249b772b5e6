"""Checks what `headrace bench plan` predicts."""

import subprocess
import sys
import time
from pathlib import Path

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
        if case.share == 1
    }
    assert list(found) == [
        ("actor.count=1",),
        ("actor.count=2",),
        ("actor.count=4",),
        ("unroll.length=32",),
    ]
    assert found["actor.count=1",] <= 1 / costs(16).sampler_s
    assert found["unroll.length=32",] > found["actor.count=2",]


def test_a_learner_with_half_a_core_trains_half() -> None:
    given = Costs(sampler_s=1e-4, learner_s=1e-3, broker_s=1e-5)
    *_, more, less = plan.cases(given, given, length=16, samplers=2)
    assert (more.sets, less.sets) == ((), ())
    assert [more.predicted, less.predicted] == pytest.approx([750, 500])
    assert [more.share, less.share] == pytest.approx([0.75, 0.5])


@pytest.mark.slow
def test_a_learner_is_held_to_a_part_of_a_core() -> None:
    spins = "open('/proc/self/comm', 'w').write('learner')\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", spins]) as learner:
        try:
            began = time.monotonic()
            with plan.learner_held(0.2):
                first = used = used_when_stopped(learner.pid)
                while used < first + 0.3:
                    used = used_when_stopped(learner.pid)
                    while is_stopped(learner.pid):
                        time.sleep(0.001)
                    # However late it was stopped: it goes on only when its share is more
                    assert used - first <= 0.2 * (time.monotonic() - began)
            used = plan.used_s(learner.pid)
            while plan.used_s(learner.pid) < used + 0.05:  # it goes on
                time.sleep(0.01)
        finally:
            learner.kill()


def used_when_stopped(pid: int) -> float:
    """Waits until the process is stopped, and returns the processor seconds it has used."""
    while not is_stopped(pid):
        time.sleep(0.001)
    return plan.used_s(pid)


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
