"""The learning gates' bookkeeping: what is started, and what counts as passed."""

import contextlib
import json
from typing import Any, TypeAlias

import pytest

from headrace.launch.bench.gates import learning_gates
from headrace.launch.config import run_file
from headrace.launch.policies.split import has_policies, split

Started: TypeAlias = tuple[str, list[str], tuple[str, ...]]  # run, options, settings


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Started]:
    """Stands in for training: seed 1 solves it, seed 2 never, the others too late."""
    calls: list[Started] = []

    def train(
        run: str, options: list[str], sets: tuple[str, ...], _: Any, *, evaluated: bool
    ) -> dict[str, Any]:
        # An evaluation ends no run that nobody evaluates.
        assert evaluated == ("stop.metric=evaluation" in sets)
        calls.append((run, options, sets))
        seed, limit = int(options[1]), int(options[-1])
        solved = {1: limit - 1, 2: None}.get(seed, limit + 500)
        return {"solved_at_steps": solved, "wall_s": 1.0, "mean_return": 9.0, "games": []}

    monkeypatch.setattr(learning_gates, "train", train)
    return calls


@pytest.mark.parametrize("name", learning_gates.GATES)
def test_every_gate_is_a_shipped_run_with_settings_it_takes(name: str) -> None:
    gate = learning_gates.GATES[name]
    if has_policies(gate.run):
        runs = [
            run_file.build(one.tables, one.sets, source=one.name)
            for one in split(gate.run, gate.sets)
        ]
    else:
        assert gate.run in run_file.shipped()
        runs = [run_file.load(gate.run, gate.sets)]
    for run in runs:
        # The step size may have gone by the end of the gate, not long before it.
        lr = run.learner.lr
        falls = isinstance(lr, tuple) and lr[-1][0] >= gate.steps
        assert falls or isinstance(lr, float) or lr == "auto"


def test_all_but_the_long_ones_run_and_a_failed_seed_fails_the_gate(
    started: list[Started], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match=r"not passed: cartpole-impala, .*rock-paper-scissors$"):
        learning_gates.bench()
    assert {run for run, _, _ in started} == {
        gate.run for gate in learning_gates.GATES.values() if not gate.long
    }
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("gate cartpole-impala  run cartpole-impala  goal 475")
    figures = json.loads(lines[-1])
    assert figures["bench"] == "learn"
    assert figures["acrobot"]["passed"] == [1]
    assert figures["acrobot"]["solved_at_steps"] == [499_999, None, 500_500]


def test_a_gate_by_name(started: list[Started]) -> None:
    assert learning_gates.bench(["pong"])["pong"]["passed"] == [1]
    assert started == [
        ("pong", ["--seed", "1", "--stop-return", "18", "--stop-steps", "2500000"], ())
    ]
    with pytest.raises(run_file.ConfigError, match=r"no gate ping; there are cartpole-impala"):
        learning_gates.bench(["ping"])


@pytest.mark.parametrize(
    ("steps", "quartiles", "ok"),
    [
        ([100_000] * 19 + [None], [100_000] * 3, True),
        ([100_000] * 18 + [None] * 2, [100_000] * 3, False),  # nine tenths are too few
        ([90_000] * 10 + [100_000] * 4 + [190_000] * 6, [90_000, 95_000, 190_000], True),
        ([90_000] * 10 + [100_000] * 4 + [191_000] * 6, [90_000, 95_000, 191_000], False),
    ],
)
def test_a_gate_wants_nearly_every_run_and_no_slow_quarter(
    monkeypatch: pytest.MonkeyPatch, steps: list[int | None], quartiles: list[int], ok: bool
) -> None:
    def train(_: str, options: list[str], *__: object, **___: bool) -> dict[str, Any]:
        solved = steps[int(options[1]) - 1]
        return {"solved_at_steps": solved, "wall_s": 1.0, "mean_return": 9.0}

    monkeypatch.setattr(learning_gates, "train", train)
    with contextlib.nullcontext() if ok else pytest.raises(SystemExit, match="not passed: catch"):
        figures = learning_gates.bench(["catch"], runs=20)["catch"]
        assert figures["seeds"] == list(range(1, 21))
        assert figures["quartiles"] == quartiles


def test_the_gates_of_a_run_by_its_name(
    started: list[Started], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A gate whose environment is not installed is left out, with a line."""
    monkeypatch.setattr(learning_gates, "find_spec", lambda name: name == "mujoco" or None)
    with pytest.raises(SystemExit, match=r"not passed: bare-cartpole-ppo, .*-appo$"):
        learning_gates.bench(["bare"])
    assert {run for run, _, _ in started} == {"bare"}
    found = {sets for _, _, sets in started}
    double = ("env.id=InvertedDoublePendulum-v5", "algorithm.name=ppo")
    assert (*double, "stop.return=9100", "stop.metric=evaluation") in found
    assert ("env.id=LunarLander-v3", "algorithm.name=ppo") not in found
    lines = capsys.readouterr().out.splitlines()
    assert "gate bare-lunarlander-ppo  skipped Box2D is not installed" in lines


def test_a_bare_gate_sets_nothing_but_the_environment_and_the_algorithm() -> None:
    bare = {name: gate for name, gate in learning_gates.GATES.items() if gate.run == "bare"}
    assert all(gate.long for gate in bare.values())
    for name, gate in bare.items():
        keys = [one.partition("=")[0] for one in gate.sets]
        assert keys[:2] == ["env.id", "algorithm.name"]
        # What is to be remembered needs a memory, and no other setting either.
        memory = [] if name.startswith("bare-") else ["model.core"]
        assert keys[2:] == memory + (["stop.return", "stop.metric"] if gate.evaluated else [])
    assert "bare-cartpole-impala" in bare and "bare-pendulum-impala" not in bare


def test_settings_of_a_gate_reach_its_run(started: list[Started]) -> None:
    with pytest.raises(SystemExit):
        learning_gates.bench(["memory-gru-impala"])
    assert started[0][2][:2] == ("model.core=gru", "algorithm.name=impala")


def test_settings_of_the_command_line_count_after_those_of_the_gate(
    started: list[Started], capsys: pytest.CaptureFixture[str]
) -> None:
    learning_gates.bench(["memory-gru-impala"], 1, ["algorithm.drift_limit=0.2"])
    assert started[0][2][-2:] == ("algorithm.replay_share=0.0", "algorithm.drift_limit=0.2")
    assert "algorithm.drift_limit=0.2" in capsys.readouterr().out.splitlines()[0]
    with pytest.raises(run_file.ConfigError, match=r"algorithm.drift"):
        learning_gates.bench(["catch"], 1, ["algorithm.drift=0.2"])


def test_a_run_that_left_no_summary_is_not_solved(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(*_: object, **__: bool) -> dict[str, Any]:
        raise FileNotFoundError

    monkeypatch.setattr(learning_gates, "train", train)
    with pytest.raises(SystemExit, match="not passed: pong"):
        learning_gates.bench(["pong"])
