"""Games that a gate asks for: who plays them, and what is counted."""

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headrace.actors.config import EnvConfig
from headrace.actors.envs.make import probe
from headrace.launch.bench.gates import games, learning_gates
from headrace.launch.bench.gates.games import HALF, Games, perfect_tictactoe
from headrace.launch.results import loaded_run

NIM = "headrace.actors.envs.toys.several_agents:Nim"
LINES = [[(row, at) for at in range(3)] for row in range(3)]
LINES += [[(at, column) for at in range(3)] for column in range(3)]
LINES += [[(at, at) for at in range(3)], [(at, 2 - at) for at in range(3)]]


def outcome(first: Callable[[Any], int], second: Callable[[Any], int]) -> int:
    """Plays a game on a board of its own; returns 1 where the first wins, -1 where the second."""
    planes = np.zeros((3, 3, 2), np.int8)  # of the first, of the second
    for turn in range(9):
        side = turn % 2
        seen = planes if side == 0 else planes[..., ::-1]
        place = divmod((first, second)[side](seen), 3)
        assert not planes[place].any(), "the square is taken"
        planes[(*place, side)] = 1
        if any(all(planes[(*square, side)] for square in line) for line in LINES):
            return 1 - 2 * side
    return 0


def perfect(planes: Any) -> int:
    return int(perfect_tictactoe({"observation": planes[None]})[0])


def test_the_perfect_player_never_loses() -> None:
    dice = random.Random(1)

    def drawn(planes: Any) -> int:
        return dice.choice(np.flatnonzero(~planes.any(axis=2).ravel()).tolist())

    begins = [outcome(perfect, drawn) for _ in range(150)]
    follows = [outcome(drawn, perfect) for _ in range(150)]
    assert min(begins) == 0 or min(begins) == 1
    assert max(follows) <= 0 and -1 in follows and 1 in begins
    assert outcome(perfect, perfect) == 0
    # Several boards at once, each its own.
    boards = np.zeros((2, 3, 3, 2), np.int8)
    boards[1, 0, :2, 0] = boards[1, 1, :2, 1] = 1  # two in a row each: it wins at once
    assert perfect_tictactoe({"observation": boards})[1] == 2


def nim(leave_run: Any, folder: Path, **more: Any) -> Path:
    leave_run(folder, probe(EnvConfig(NIM)), [f"env.id={NIM}", "unroll.envs=8"], **more)
    return folder


def test_shares_of_games_are_held_to_what_is_asked(leave_run: Any, tmp_path: Path) -> None:
    folder = nim(leave_run, tmp_path / "run")
    found = games.play(folder, Games("random", 60))
    won, lost = found["won"], found["lost"]
    assert found["holds"] and 0 < won < 1 and 0 < lost < 1 and won + lost <= 1
    again = [
        games.play(folder, Games("random", 60, won=won, lost=lost)),
        games.play(folder, Games("random", 60, won=won + 0.01)),
        games.play(folder, Games("random", 60, lost=lost - 0.01)),
    ]
    assert [one["holds"] for one in again] == [True, False, False]


def test_half_is_the_checkpoint_nearest_to_half_of_the_versions(
    leave_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    nim(leave_run, folder, version=100, seed=4)
    for version in (10, 60, 80):
        other = nim(leave_run, tmp_path / f"run{version}", version=version, seed=version)
        name = f"{version:012d}"
        (other / "checkpoints" / name).rename(folder / "checkpoints" / name)
    asked = []
    inner = loaded_run.opponent

    def opponent(how: Any, spaces: Any) -> Any:
        asked.append(how.against)
        return inner(how, spaces)

    monkeypatch.setattr(loaded_run, "opponent", opponent)
    found = games.play(folder, Games(HALF, 40, greedy=False))
    assert asked == [str(folder / "checkpoints" / f"{60:012d}")]
    assert found["against"] == HALF and found["won"] and found["lost"]


@pytest.mark.parametrize("lost", [0.0, 1.0])
def test_a_gate_of_games_is_passed_by_them(
    lost: float, leave_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = nim(leave_run, tmp_path / "run")
    gate = learning_gates.Gate("nim", 0.0, 5000, games=(Games("random", 40, lost=lost),))
    started = []

    def train(_: str, options: list[str], __: Any, afterwards: Any, **___: bool) -> dict[str, Any]:
        started.append(options)
        return {"wall_s": 1.0, "mean_return": 0.0, **afterwards(folder)}

    monkeypatch.setattr(learning_gates, "train", train)
    found = learning_gates.run_gate("nim", gate, 1)
    assert found["passed"] == ([1] if lost else [])
    assert found["solved_at_steps"] == ([5000] if lost else [None])
    assert started == [["--seed", "1", "--stop-steps", "5000"]]
    assert found["games"][0][0]["against"] == "random"


def symbols(leave_run: Any, folder: Path, logits: list[float], version: int) -> Path:
    """Leaves a player of rock, paper, scissors whose choices have these log-probabilities."""

    def change(model: Any) -> None:
        model.policy_head.weight.zero_()
        model.policy_head.bias.copy_(torch.tensor(logits))

    env = "headrace.actors.envs.toys.several_agents:RockPaperScissors"
    sets = [f"env.id={env}", "unroll.envs=8"]
    leave_run(folder, probe(EnvConfig(env)), sets, version=version, change=change)
    return folder


def test_what_all_checkpoints_choose_together_must_be_even(leave_run: Any, tmp_path: Path) -> None:
    folder = symbols(leave_run, tmp_path / "run", [9.0, 0.0, 0.0], 1)
    alone = games.play_alone(folder, 0.05)
    assert alone["mean"] == pytest.approx([1, 0, 0], abs=0.02) and not alone["holds"]
    for version, logits in ((2, [0.0, 9.0, 0.0]), (3, [0.0, 0.0, 9.0])):
        other = symbols(leave_run, tmp_path / f"run{version}", logits, version)
        name = f"{version:012d}"
        (other / "checkpoints" / name).rename(folder / "checkpoints" / name)
    found = games.play_alone(folder, 0.05)
    assert found["mean"] == pytest.approx([1 / 3] * 3, abs=0.02) and found["holds"]
    assert found["late"] == pytest.approx(2 / 3, abs=0.02)  # of the last alone
    assert not games.play_alone(folder, 0.0)["holds"]


def test_a_gate_of_evenness_is_passed_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def train(_: str, options: list[str], __: Any, afterwards: Any, **___: bool) -> dict[str, Any]:
        asked.append(options)
        return {"wall_s": 1.0, "mean_return": 0.0, **afterwards(Path("run"))}

    def alone(_: Path, within: float) -> dict[str, Any]:
        return {"holds": within == 0.05}

    monkeypatch.setattr(learning_gates, "train", train)
    monkeypatch.setattr(learning_gates, "play_alone", alone)
    gate = learning_gates.GATES["rock-paper-scissors"]
    assert learning_gates.run_gate("even", gate, 1)["passed"] == [1]
    narrow = dataclasses.replace(gate, even=0.01)
    assert learning_gates.run_gate("even", narrow, 1)["passed"] == []
    assert asked[0] == ["--seed", "1", "--stop-steps", "500000"]
