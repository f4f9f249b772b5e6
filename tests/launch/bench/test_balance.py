"""The price of balance, and what more CPUs give: which runs are compared, what is told of them."""

import json
from typing import Any

import pytest

from headrace.launch.bench import lockstep
from headrace.launch.config import run_file


def test_both_balances_and_synchronous_sampling_are_compared(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs: list[run_file.Run] = []

    def train(name: str, _options: Any, sets: Any) -> dict[str, Any]:
        runs.append(run_file.load(name, sets))
        return {
            "steps_per_s": 150.0,
            "trained_quarters": [0.25] * 4,
            "solved_at_steps": 7000,
            "mean_return": 0.9,
            "wall_s": 10.0,
        }

    monkeypatch.setattr(lockstep, "train", train)
    figures = lockstep.balance(seeds=(1, 2))
    uneven, learnt = runs[:2], runs[2:]
    assert [run.pacing.balance for run in uneven] == ["speed", "environments"]
    assert {run.actor.groups * run.unroll.envs for run in uneven} == {16}
    assert [(run.pacing.balance, run.pacing.max_lag) for run in learnt[::2]] == [
        ("speed", 2),
        ("environments", 2),
        ("speed", 0),
    ]
    assert [figures[name]["ideal_per_s"] for name in ("speed", "environments")] == [12040, 160]
    assert figures["learnt_synchronous"]["solved_at_steps"] == [7000, 7000]
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["bench"] == "balance"


def test_more_cpus_beside_the_ideal_and_lock_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs: list[run_file.Run] = []

    def train(name: str, _options: Any, sets: Any) -> dict[str, Any]:
        runs.append(run_file.load(name, sets))
        return {"steps_per_s": 230.5 * runs[-1].actor.count, "trained_steps_per_s": 240.0}

    monkeypatch.setattr(lockstep, "train", train)
    figures = lockstep.cpus()
    assert [run.actor.count * run.actor.groups for run in runs] == [24, 96, 384]
    assert [run.pacing.batch_unrolls for run in runs] == [24, 96, 384]
    # 3 ms, or 100 ms in 3 of 100 steps, 100 ms after 200, and a sixteenth of the speed.
    assert [one["ideal_per_s"] for one in figures] == [234.0, 936.0, 3744.1]
    assert [one["fraction"] for one in figures] == [0.985] * 3
    # Of 24 about half wait for a slow one, of 384 all.
    slowest = [0.97**n * 3 + (1 - 0.97**n) * 100 + 0.5 for n in (24, 96, 384)]
    assert [one["lock_step_fraction"] for one in figures] == pytest.approx(
        [6.41 / one for one in slowest], rel=0.03
    )
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["bench"] == "cpus"
