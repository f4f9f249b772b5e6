"""Checks what steps cost, what so many cores reach, and the file of costs."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.launch.config.run_file import ConfigError
from headrace.launch.plan import costs as run_costs
from headrace.launch.plan.costs import Costs
from headrace.launch.plan.measure import Look, costs

COSTS = Costs(sampler_s=1e-3, learner_s=2e-4, broker_s=1e-5, gpus={"T4": 5000.0})


@given(st.floats(1.0, 1e5), st.sampled_from(["", "T4"]), st.floats(0.1, 1.0))
def test_cores_that_are_needed_are_enough_and_no_fewer_are(
    rate: float, gpu: str, busy: float
) -> None:
    one = Costs(sampler_s=1e-3, learner_s=2e-4, broker_s=0.0, busy=busy, gpus={"T4": 5000.0})
    ranks = one.ranks(rate, gpu)
    cores = one.cores(rate, gpu)
    reached = one.per_s(cores, gpu, ranks=ranks)
    assert reached == pytest.approx(min(rate, ranks * one.learner_per_s(gpu)))
    assert one.per_s(cores * 0.9, gpu, ranks=ranks) < reached


def test_samplers_broker_and_learner_each_bound_the_rate() -> None:
    assert COSTS.per_s(100, "", ranks=1) == pytest.approx(5000), "the learner's core"
    assert COSTS.per_s(100, "", ranks=1, samplers=2) == pytest.approx(2000)
    assert COSTS.per_s(1e6, "T4", ranks=64) == pytest.approx(1e5), "the broker"
    assert COSTS.per_s(1, "T4", ranks=1) == 0, "the rank's host has the only core"


def test_costs_come_from_what_processes_used_between_two_looks() -> None:
    first = Look(10.0, 1000, {"broker": 1.0, "learner": 2.0, "actor-0": 3.0, "headrace": 1.0})
    last = Look(
        14.0, 5000, {"broker": 1.2, "learner": 4.0, "actor-0": 6.0, "actor-1": 1.0, "headrace": 1.2}
    )
    found = costs(first, last, cores=2, samplers_mib=80.0)
    assert found.sampler_s == pytest.approx(3.0 / 4000), "one that began meanwhile is left out"
    assert found.learner_s == pytest.approx(2.0 / 4000)
    assert found.broker_s == pytest.approx(0.2 / 4000)
    assert found.busy == pytest.approx(5.4 / 8)
    assert found.sampler_mib == 80.0


def test_a_run_that_trained_nothing_meanwhile_has_no_costs() -> None:
    look = Look(10.0, 1000, {"broker": 1.0, "learner": 1.0})
    with pytest.raises(ConfigError, match="too little was trained"):
        costs(look, look, cores=2)


def test_a_process_that_is_not_seen_is_one_line() -> None:
    first, last = Look(0.0, 0, {"broker": 0.0}), Look(9.0, 900, {"broker": 1.0, "learner": 1.0})
    with pytest.raises(ConfigError, match="processes are not seen, or one of them ended"):
        costs(first, last, cores=2)


def test_what_is_measured_predicts_its_own_rate_where_all_cores_are_busy() -> None:
    first = Look(0.0, 0, {"broker": 0.0, "learner": 0.0, "actor-0": 0.0})
    last = Look(10.0, 5000, {"broker": 1.0, "learner": 9.0, "actor-0": 8.0})
    found = costs(first, last, cores=2)
    assert found.per_s(2, "", ranks=1) == pytest.approx(500)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sampler_s = 1e-3\nlearner_s = 1e-3\n", "missing required field `broker_s`"),
        ("sampler_s = 0.0\nlearner_s = 1e-3\nbroker_s = 0.0\n", "Expected `float` > 0"),
        ("sampler_s = 1e-3\nlearner_s = 1e-3\nbroker_s = 0.0\ncore = 1\n", "unknown field `core`"),
        ("sampler_s = ", "costs.toml: "),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "costs.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words) as caught:
        run_costs.read(path)
    assert "\n" not in str(caught.value)


def test_a_file_of_costs(tmp_path: Path) -> None:
    path = tmp_path / "costs.toml"
    path.write_text("sampler_s = 1e-3\nlearner_s = 2e-4\nbroker_s = 1e-5\ngpus = { T4 = 5000.0 }\n")
    assert run_costs.read(path) == COSTS
    assert run_costs.with_gpus(COSTS, {"L4": 9e3}).gpus == {"T4": 5000.0, "L4": 9e3}
    with pytest.raises(ConfigError, match="cannot read the costs"):
        run_costs.read(tmp_path / "none.toml")
