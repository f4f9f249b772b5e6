"""The folder of a run that version 0.1 left: played, gone through and continued by this one."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import headrace
from headrace.actors.envs.toys.tasks import Multi
from headrace.broker.journal import audit
from headrace.launch.config import run_file

FROZEN = Path(__file__).with_name("run_of_0_1")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FROZEN, tmp_path / "run"))


def test_its_environment_is_found_by_the_name_it_has_now(folder: Path) -> None:
    assert 'id = "actors.envs.tasks:Multi"' in (folder / "run.toml").read_text()
    assert run_file.load(str(folder / "run.toml")).env.id == "headrace/Multi-v0"
    sets = ["env.id=actors.envs.tasks:Multi"]
    assert run_file.load("cartpole", sets).env.id == "headrace/Multi-v0"


@pytest.mark.parametrize("which", ["best", "newest"])
def test_its_policies_act(folder: Path, which: str) -> None:
    policy = headrace.load_policy(folder, which)
    obs, _ = Multi().reset(seed=1)
    action, _ = policy.act(obs)
    assert Multi().action_space.contains(action)


def test_its_account_is_exact(folder: Path) -> None:
    assert audit.read(folder / "ledger").exact()


@pytest.mark.processes
def test_it_is_continued(folder: Path) -> None:
    before = json.loads((folder / "summary.json").read_text())["trained_steps"]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "headrace.launch.cli",
            "train",
            "multi",
            "--out",
            str(folder),
            "--resume",
            "--quiet",
            "--stop-steps",
            "6000",
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3, done.stderr  # by the limit
    after = json.loads((folder / "summary.json").read_text())
    assert before >= 3000 and after["trained_steps"] >= 6000
    assert 'id = "headrace/Multi-v0"' in (folder / "run.toml").read_text()
