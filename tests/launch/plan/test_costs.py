"""Checks what steps cost, what so many cores reach, and the file of costs."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.launch.config.run_file import ConfigError
from headrace.launch.plan import costs as run_costs
from headrace.launch.plan.costs import Costs

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


def left(folder: Path, **summary: object) -> Path:
    """Writes what a run leaves that had these costs."""
    parts = {"sampler_s": 1e-3, "learner_s": 2e-4, "broker_s": 1e-5, "busy": 0.5}
    found = {"costs": parts | {"sampler_mib": 80.0}, "wire_bytes_per_step": 34.5} | summary
    (folder / "summary.json").write_text(json.dumps(found))
    (folder / "broker.json").write_text(json.dumps({"weights_bytes": 36_620}))
    return folder


def test_costs_are_read_from_a_run_that_has_ended(tmp_path: Path) -> None:
    found = run_costs.read(left(tmp_path))
    assert (found.sampler_s, found.learner_s, found.broker_s) == (1e-3, 2e-4, 1e-5)
    assert (found.busy, found.sampler_mib) == (0.5, 80.0)
    assert (found.step_bytes, found.weights_bytes) == (34.5, 36_620)


@pytest.mark.parametrize(
    ("summary", "words"),
    [
        ({"costs": None}, "too little was trained to tell what a step costs"),
        ({"costs": {"sampler_s": 1e-3}}, "missing required field `learner_s`"),
        ({"costs": "high"}, "unsupported operand"),
        ({"wire_bytes_per_step": -1.0}, "Expected `float` >= 0.0"),
    ],
)
def test_a_run_without_costs_is_one_line(
    tmp_path: Path, summary: dict[str, object], words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        run_costs.read(left(tmp_path, **summary))
    assert str(tmp_path) in str(caught.value)


def test_a_folder_without_a_summary_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the costs .*summary.json: No such file"):
        run_costs.read(tmp_path)
    (tmp_path / "summary.json").write_text("{")
    (tmp_path / "broker.json").write_text("{}")
    with pytest.raises(ConfigError, match="no summary of a run that says its costs"):
        run_costs.read(tmp_path)


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
