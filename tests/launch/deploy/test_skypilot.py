"""`headrace units skypilot`: its commands are true, and its script ends as it should."""

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from headrace.launch import cli
from tests.launch.deploy.test_units import check, tool

pytestmark = pytest.mark.processes

# Instead of ours: each notes that it was asked to stop. Once all are there, some end by themselves.
STAND_IN = """#!/bin/bash
trap 'echo "$1" >> ended; exit 0' TERM
touch "began$1"
until [[ -e beganbroker && -e beganevaluate && -e began-m ]]; do sleep 0.01; done
case $1 in
    broker) status=$BROKER_STATUS ;;
    -m) status=$LEARNER_STATUS ;;
    evaluate) status=${LEARNER_STATUS/[^0]/} ;;
esac
[[ -z $status ]] || exit "$status"
while :; do sleep 0.01; done
"""


def task(out: Path, *more: str) -> dict[str, Any]:
    assert cli.main(["units", "skypilot", "--run", "cartpole", "--out", str(out), *more]) == 0
    found: dict[str, Any] = yaml.safe_load((out / "headrace.sky.yaml").read_text())
    return found


@pytest.mark.parametrize("gpu", [False, True])
def test_a_task_is_sound(gpu: bool, tmp_path: Path) -> None:
    shellcheck = tool("shellcheck", "shellcheck")
    more = ("--set", "learner.device=cuda") if gpu else ()
    found = task(tmp_path / "sky", "--nodes", "3", "--ranks", "2", *more)
    assert {key for key, value in found.items() if isinstance(value, str)} == {
        "name",
        "setup",
        "run",
    }
    assert (found["name"], found["num_nodes"]) == ("headrace-cartpole", 4)
    assert found["resources"] == {"cpus": "5+"} | ({"accelerators": "L4:2"} if gpu else {})
    assert set(found["file_mounts"].values()) == {"cartpole.toml", "keys"}
    script = tmp_path / "run.sh"
    script.write_text(found["run"])
    subprocess.run([shellcheck, "--shell=bash", str(script)], check=True)
    joined = found["run"].replace("\\\n", " ")
    lines = re.findall(r"^ *(?:exec )?(headrace|python) (.*?)&?$", joined, re.M)
    assert [check([name, *shlex.split(line)]) for name, line in lines] == [
        "node",
        "broker",
        "evaluate",
        "learner",
    ]


@pytest.mark.parametrize(
    ("broker", "learner", "status", "ended"),
    [
        ("2", "", 2, ["-m", "evaluate"]),
        ("1", "", 1, ["-m", "evaluate"]),
        ("0", "", 1, ["-m", "evaluate"]),
        ("", "0", 0, ["broker"]),
        ("", "3", 3, ["broker", "evaluate"]),
    ],
)
def test_a_task_ends_with_its_learner_or_its_broker(
    broker: str, learner: str, status: int, ended: list[str], tmp_path: Path
) -> None:
    home = tmp_path / "headrace"
    (home / "keys").mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    for name in ("headrace", "python"):
        (tmp_path / "bin" / name).write_text(STAND_IN)
        (tmp_path / "bin" / name).chmod(0o755)
    env = {"HOME": str(tmp_path), "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    env |= {"SKYPILOT_NODE_IPS": "10.0.0.1", "SKYPILOT_NODE_RANK": "0"}
    env |= {"BROKER_STATUS": broker, "LEARNER_STATUS": learner}
    words = ["bash", "-c", task(tmp_path / "sky")["run"]]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=90)
    assert done.returncode == status, done.stderr
    assert sorted((home / "ended").read_text().split()) == ended
