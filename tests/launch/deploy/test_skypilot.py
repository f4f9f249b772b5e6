"""`headrace units skypilot`: its commands are true, and its script ends as it should."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from headrace.broker.release import release
from headrace.launch import cli
from tests.launch.deploy.test_units import check, tool
from tests.needs import missing

pytestmark = pytest.mark.processes

WHEEL = f"headrace-{release()}-py3-none-any.whl"
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
    assert set(found["file_mounts"].values()) == {"cartpole.toml", "keys", WHEEL}
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


def test_what_is_installed_comes_along(tmp_path: Path) -> None:
    """A bare name would install whatever an index has under it."""
    found = task(tmp_path)
    lines = [shlex.split(line) for line in found["setup"].splitlines() if "install" in line]
    assert lines
    for _, _, *what in lines:
        assert what and set(what) <= set(found["file_mounts"]), what


def test_skypilot_itself_takes_it(tmp_path: Path) -> None:
    """In an environment of its own: it pins what we use otherwise. Without GPUs, which it looks up
    in a catalogue on the network."""
    own = Path(sys.prefix, "skypilot", "bin", "python")
    if not own.exists():
        missing(
            "SkyPilot is not installed: python -m venv .venv/skypilot, and pip install it there"
        )
    out = tmp_path / "sky"
    task(out, "--nodes", "3", "--ranks", "2")
    (out / "keys").mkdir()
    (out / WHEEL).touch()
    assert "headrace-cartpole 4 5+" in taken(own, out)
    file = out / "headrace.sky.yaml"
    file.write_text(file.read_text().replace("num_nodes", "num_node"))
    assert "num_node" in taken(own, out)


def taken(python: Path, out: Path) -> str:
    """What SkyPilot makes of the task, or says of it."""
    done = subprocess.run(
        [str(python), "-c", TAKEN],
        cwd=out,
        env={
            "HOME": str(out),
            "PATH": os.environ["PATH"],
            "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.stdout


TAKEN = """
import sky
task = sky.Task.from_yaml("headrace.sky.yaml")
task.validate()
(resources,) = task.resources
print(task.name, task.num_nodes, resources.cpus)
"""


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
