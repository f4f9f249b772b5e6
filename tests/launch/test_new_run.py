"""`headrace new`: the file it writes is a run, also with what it only suggests."""

import re
import sys
from pathlib import Path

import pytest
from gymnasium.envs import registration

from headrace.launch import cli, new_run
from headrace.launch.config import run_file


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_file_says_what_the_environment_is_and_trains_it() -> None:
    assert cli.main(["new", "Acrobot-v1", "--algorithm", "appo"]) == 0
    text = Path("acrobot.toml").read_text()
    assert "# Acrobot-v1: observation obs float32[6]; action choice of 3. At most 500 steps" in text
    run = run_file.load("acrobot.toml")
    assert (run.run.name, run.env.id, run.algorithm.name) == ("acrobot", "Acrobot-v1", "appo")
    assert (run.stop.return_, run.stop.steps) == (-100.0, 1_000_000)


def test_what_it_suggests_are_keys_of_a_run() -> None:
    assert cli.main(["new", "Pendulum-v1", "--out", "mine.toml"]) == 0
    text = Path("mine.toml").read_text()
    assert run_file.load("mine.toml").stop.return_ is None
    suggested = re.sub(r"^# (?=\[|\w+ = )", "", text, flags=re.MULTILINE)
    suggested = suggested.replace('"module:factory"', '"gymnasium.wrappers:ClipAction"')
    Path("all.toml").write_text(suggested)
    run = run_file.load("all.toml")
    assert (run.model.core, run.model.hidden, run.stop.return_) == ("lstm", (256, 256), 100.0)


@pytest.mark.parametrize(("algorithm", "columns"), [("ppo", 9), ("appo", 6)])
def test_several_agents_fit_into_its_unrolls(algorithm: str, columns: int) -> None:
    """As many environments as the algorithm's columns ask for."""
    toys = "headrace.actors.envs.toys.several_agents"
    Path("three.py").write_text(f"from {toys} import Seats\ndef triple():\n    return Seats(3)\n")
    assert cli.main(["new", "three:triple", "--algorithm", algorithm]) == 0
    assert run_file.load("triple.toml").unroll.envs == columns
    text = Path("triple.toml").read_text()
    assert (
        f"envs = {columns}" in text and "# columns: one for each environment, or each agent" in text
    )


def test_a_mask_is_found_and_others_are_suggested() -> None:
    Path("taken.py").write_text(
        "from gymnasium.spaces import Box, Dict, Discrete\n"
        "from headrace.actors.envs.toys.several_agents import Nim\n"
        "class Masked(Nim):\n"
        "    def observation_space(self, agent):\n"
        "        return Dict(stones=super().observation_space(agent),\n"
        "                    action_mask=Box(0, 1, (3,), 'i1'),\n"
        "                    mask_of_stones=Box(0, 1, (20,), 'i1'))\n"
    )
    assert cli.main(["new", "taken:Masked"]) == 0
    run = run_file.load("masked.toml")
    assert run.env.mask == "action_mask"
    text = Path("masked.toml").read_text()
    assert '# against = "random"' in text and "mask_of_stones" in text
    assert cli.main(["new", "CartPole-v1"]) == 0
    assert "mask" not in Path("cartpole.toml").read_text()
    assert "against" not in Path("cartpole.toml").read_text()


@pytest.mark.parametrize("algorithm", ["ppo", "appo", "impala"])
def test_a_game_of_atari_begins_with_the_settings_of_the_shipped_one(algorithm: str) -> None:
    pytest.importorskip("ale_py")
    assert cli.main(["new", "ALE/Boxing-v5", "--algorithm", algorithm]) == 0
    run = run_file.load("boxing.toml")
    assert (run.env.id, run.env.stack, run.algorithm.name) == ("ALE/Boxing-v5", 4, algorithm)
    assert run.algorithm.reward_clip == 1.0 and run.stop.steps == 10_000_000
    assert run.stop.return_ is None
    if algorithm != "appo":  # no game ships for it
        shipped = run_file.load("pong-ppo" if algorithm == "ppo" else "pong")
        for section in ("unroll", "model", "algorithm", "learner", "pacing", "actor"):
            assert getattr(run, section) == getattr(shipped, section)


GRID = """
import gymnasium
import numpy as np


class Grid(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 255, (10, 10, 4), np.uint8)
    action_space = gymnasium.spaces.Discrete(3)
"""


@pytest.mark.parametrize("algorithm", ["ppo", "appo"])
def test_a_small_grid_begins_with_the_settings_of_the_shipped_one(
    algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cells.py").write_text(GRID)
    monkeypatch.syspath_prepend(tmp_path)
    assert cli.main(["new", "cells:Grid", "--algorithm", algorithm]) == 0
    run = run_file.load("grid.toml")
    shipped = run_file.load("minatar" if algorithm == "ppo" else "bare")
    if algorithm == "ppo":
        for section in ("unroll", "model", "algorithm", "learner", "pacing", "actor"):
            assert getattr(run, section) == getattr(shipped, section)
    else:  # no grid ships for it
        assert run.model == shipped.model and run.unroll.length == 32


GAME = """
import gymnasium
gymnasium.register("TinyGrid-Empty-v3", "gymnasium.envs.classic_control:CartPoleEnv")
"""


@pytest.mark.parametrize("declared", [False, True])
def test_an_id_of_an_installed_package_is_found_without_its_name(
    declared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the package's name, which is much like the id's beginning, or by what it declares."""
    name = "otherwise" if declared else "tinygrid"
    info = tmp_path / "site" / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "top_level.txt").write_text(name)
    if declared:
        (info / "entry_points.txt").write_text(f"[gymnasium.envs]\n__root__ = {name}:register\n")
    (tmp_path / "site" / f"{name}.py").write_text(GAME)
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setattr(registration, "registry", dict(registration.registry))
    monkeypatch.delitem(sys.modules, name, raising=False)
    assert cli.main(["new", "TinyGrid-Empty-v3"]) == 0
    assert run_file.load("tinygrid-empty.toml").env.id == f"{name}:TinyGrid-Empty-v3"


@pytest.mark.parametrize(
    ("env_id", "name"),
    [
        ("headrace/Catch-v0", "catch"),
        ("my.module:make_it", "make-it"),
        ("pettingzoo.classic.connect_four_v3:raw_env", "connect-four"),
        ("MiniGrid-DoorKey-5x5-v0", "minigrid-doorkey-5x5"),
        ("ALE/Pong-v5", "pong"),
        ("!", "run"),
    ],
)
def test_a_run_has_the_name_of_its_environment(env_id: str, name: str) -> None:
    assert new_run._name(env_id) == name


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        # The packages that are installed are asked for it.
        pytest.param(
            ["nothing-v3"], "env.id = 'nothing-v3' cannot be made", marks=pytest.mark.slow
        ),
        (["CartPole-v1", "--out", "there.toml"], "there.toml is there already"),
        (
            ["CartPole-v1", "--out", "no/such/folder.toml"],
            "cannot write no/such/folder.toml: No such file",
        ),
    ],
)
def test_what_it_cannot_write_is_one_line(
    words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("there.toml").write_text("mine")
    assert cli.main(["new", *words]) == 2
    said = capsys.readouterr().err
    assert complaint in said and said.count("\n") == 1
    assert Path("there.toml").read_text() == "mine"
