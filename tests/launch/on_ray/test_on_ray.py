"""`headrace ray` without a cluster: an agent and its command, and what is wrong."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.broker.security import keys
from headrace.launch import cli
from headrace.launch.on_ray import agent, cluster, run
from tests.needs import missing
from tests.system.conftest import until
from tests.system.platforms import ray_cluster

# An agent as Ray's worker holds it: with threads beside. Its command says its pid, and waits.
HOST = """
import signal, sys, threading
from headrace.launch.on_ray.agent import Agent
threading.Thread(target=threading.Event().wait, daemon=True).start()
agent = Agent("actor-1")
agent.start(sys.argv[1], [], {})
signal.pause()
"""
COMMAND = """
import os, signal
print(os.getpid(), flush=True)
signal.pause()
"""


@pytest.mark.processes
def test_a_command_dies_with_its_agent(tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text(COMMAND)
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    words = [sys.executable, "-c", HOST, "waits"]
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None
        command = Path("/proc", host.stdout.readline().strip())
        assert command.is_dir()
        host.send_signal(signal.SIGKILL)
        until(lambda: ended(command), f"{command} ended")


def ended(process: Path) -> bool:
    """Or nobody has asked yet how: other tests made this process the heir of orphans."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.processes
def test_an_agent_stops_its_command_and_says_how_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "waits.py").write_text(COMMAND)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    one = agent.Agent("evaluator-7")
    try:
        assert one.ended(0.0) is None
        one.start("waits", [], {})
        assert one.ended(0.0) is None
        one.stop(0.0, 30.0)
        assert one.ended(0.0) == -signal.SIGTERM
    finally:
        one.close()


def test_the_brokers_agent_lets_in_and_out(tmp_path: Path) -> None:
    one = agent.Agent("broker")
    one._folder = tmp_path
    (tmp_path / keys.AUTHORISED).mkdir()
    public = keys.make("actor").public
    one.authorise("actor-3", public)
    (path,) = (tmp_path / keys.AUTHORISED).iterdir()
    assert keys.parse_public(path.read_text(), "") == public
    assert keys.owner(path.name, "") == ("actor", "3")
    one.authorise("actor-3", "")
    assert not path.exists()
    one.close()


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(["ray", "cartpole", *words]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    return said


def test_without_ray_a_line_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    said = refused(capsys, "--out", str(tmp_path))
    assert "Ray is not installed here" in said and "pip install 'headrace[ray]'" in said


def test_ranks_that_cannot_share_a_batch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, "--learners", "7", "--ranks", "9", "--out", str(tmp_path))
    assert "make it a multiple of 63" in said


@pytest.mark.processes
def test_where_no_cluster_answers_it_ends_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Asks at the port of discard, where nobody listens; Ray alone would go on for 40 s."""
    if subprocess.run([sys.executable, "-c", "import ray"], capture_output=True).returncode:
        missing("ray is not installed: pip install 'headrace[ray]'")
    monkeypatch.setitem(sys.modules, "ray", run)  # what is imported is of no matter here
    for name, value in ray_cluster.ENV.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(cluster, "_ANSWERS_WITHIN_S", 1.0)
    said = refused(capsys, "--address", "127.0.0.1:9", "--out", str(tmp_path))
    assert "no Ray cluster answers at 127.0.0.1:9: start one" in said
