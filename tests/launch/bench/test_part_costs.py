"""The parts of a run alone: each can be stepped, inferred and trained by itself."""

from collections.abc import Callable

import pytest

from headrace.launch.bench import output, part_costs
from headrace.launch.config import run_file
from headrace.launch.process import runtime


@pytest.mark.parametrize("run", ["cartpole", "cartpole-vector", "pendulum", "parts", "seats"])
def test_every_part_of_a_run_is_measured(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def call(part: Callable[[int], object]) -> float:
        for i in range(70):
            part(i)
        return 16.0

    monkeypatch.setattr(part_costs, "_per_call", call)
    sets = ["unroll.length=2", "unroll.envs=8", "pacing.batch_unrolls=1"]
    agents = ["env.kwargs.agents=4", "algorithm.minibatches=1"] if run == "seats" else []
    loaded = run_file.load(run, [*sets, *agents])
    costs = part_costs.costs(loaded)
    # One call steps a whole group, four agents, or one.
    each = {"cartpole-vector": 2.0, "seats": 4.0}.get(run, 16.0)
    assert costs == {"environment": each, "inference": 2.0, "training": 1.0}


def test_all_cores_do_the_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "cores", lambda: 6)
    parts = {"environment": 0.2, "inference": 0.3, "training": 0.1}
    assert part_costs.sum_of_parts_per_s(parts) == pytest.approx(10.0)


def test_ratios_are_taken_pair_by_pair() -> None:
    assert output.paired_ratios([2, 9, 3], [1, 3, 2]) == {
        "ratio": 2.0,
        "ratio_min": 1.5,
        "ratio_max": 3.0,
    }
