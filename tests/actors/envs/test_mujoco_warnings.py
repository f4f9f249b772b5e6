"""MuJoCo's own lines: none for every environment that is made, one for each kind of trouble."""

import importlib.util
import logging
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.actors.envs import mujoco_warnings
from tests.needs import missing

PROGRAM = """
import sys
import numpy as np
from headrace.actors.config import EnvConfig
from headrace.actors.envs.make import make_env

for name in ("HalfCheetah-v5", "gymnasium:Hopper-v5", "HalfCheetah-v5"):
    env = make_env(EnvConfig(id=name))
print("made", flush=True)
env.reset(seed=0)
for speed in (1e12, 1e13):
    env.unwrapped.data.qvel[:] = speed
    env.step(np.zeros(6, np.float32))
"""


@pytest.mark.processes
def test_environments_are_made_without_a_word(tmp_path: Path) -> None:
    """In a process of its own: MuJoCo writes past Python, and into a file where it stands."""
    if importlib.util.find_spec("mujoco") is None:
        missing("not installed: pip install 'headrace[mujoco]'")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(Path(__file__).parents[3]), "MUJOCO_GL": "disabled"},
    )
    assert done.stdout == "made\n"
    # What a simulation that breaks down has to say is not lost.
    assert done.stderr.count("MuJoCo: Nan, Inf or huge value in Q") == 1
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_each_kind_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    handlers: list[object] = []
    mujoco = SimpleNamespace(
        get_mju_user_warning=lambda: handlers[-1] if handlers else None,
        set_mju_user_warning=handlers.append,
    )
    monkeypatch.setitem(sys.modules, "mujoco", mujoco)
    monkeypatch.setattr(mujoco_warnings, "_said", set())
    for _ in range(2):
        mujoco_warnings.log_once()
    (warn,) = handlers  # one that is there stays, whoever put it there
    assert callable(warn)
    caplog.set_level(logging.WARNING)
    for time in ("0.0400", "1e-05", "17"):
        warn(f"Nan, Inf or huge value in QACC at DOF {time[0]}. Time = {time}.")
    warn("compiler attribute 'settotalmass' is deprecated\nand will be removed")
    warn("Inertia matrix is too close to singular at DOF 3")
    assert [message.split(" at ")[0] for message in caplog.messages] == [
        "MuJoCo: Nan, Inf or huge value in QACC",
        "MuJoCo: Inertia matrix is too close to singular",
    ]


def test_where_mujoco_is_not_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "mujoco", raising=False)
    mujoco_warnings.log_once()
    assert "mujoco" not in sys.modules
