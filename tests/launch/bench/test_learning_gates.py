"""The learning gates' bookkeeping: what is started, and what counts as passed."""

import json
from typing import Any

import pytest

from headrace.launch.bench import learning_gates
from headrace.launch.config import run_file


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str]]]:
    """What would have been trained. Seed 2 solves nothing, seed 3 solves it too late."""
    calls: list[tuple[str, list[str]]] = []

    def train(run: str, options: list[str]) -> dict[str, Any]:
        calls.append((run, options))
        seed, limit = int(options[1]), int(options[5])
        solved = {1: limit - 1, 2: None, 3: limit + 500}[seed]
        return {"solved_at_steps": solved, "wall_s": 1.0, "mean_return": 9.0}

    monkeypatch.setattr(learning_gates, "train", train)
    return calls


@pytest.mark.parametrize("name", learning_gates.GATES)
def test_every_gate_is_a_shipped_run_with_settings_it_takes(name: str) -> None:
    gate = learning_gates.GATES[name]
    assert gate.run in run_file.shipped()
    run = run_file.load(gate.run, gate.sets)
    # The step size may have gone by the end of the gate, not long before it.
    lr = run.learner.lr
    assert isinstance(lr, float) or lr[-1][0] >= gate.steps


def test_all_but_the_long_ones_run_and_a_failed_seed_fails_the_gate(
    started: list[tuple[str, list[str]]], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match=r"not passed: cartpole-impala, .*catch$"):
        learning_gates.bench()
    assert {run for run, _ in started} == {
        gate.run for gate in learning_gates.GATES.values() if not gate.long
    }
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("gate cartpole-impala  run cartpole-impala  goal 475")
    figures = json.loads(lines[-1])
    assert figures["bench"] == "learn"
    assert figures["acrobot"]["passed"] == [1]
    assert figures["acrobot"]["solved_at_steps"] == [499_999, None, 500_500]


def test_a_gate_by_name(started: list[tuple[str, list[str]]]) -> None:
    assert learning_gates.bench(["pong"])["pong"]["passed"] == [1]
    assert started == [("pong", ["--seed", "1", "--stop-return", "18", "--stop-steps", "10000000"])]
    with pytest.raises(run_file.ConfigError, match=r"no gate ping; there are cartpole-impala"):
        learning_gates.bench(["ping"])


def test_settings_of_a_gate_reach_its_run(started: list[tuple[str, list[str]]]) -> None:
    with pytest.raises(SystemExit):
        learning_gates.bench(["memory-gru-impala"])
    assert started[0][1][6:10] == ["--set", "model.core=gru", "--set", "algorithm.name=impala"]


def test_a_run_that_left_no_summary_is_not_solved(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(*_: object) -> dict[str, Any]:
        raise FileNotFoundError

    monkeypatch.setattr(learning_gates, "train", train)
    with pytest.raises(SystemExit, match="not passed: pong"):
        learning_gates.bench(["pong"])
