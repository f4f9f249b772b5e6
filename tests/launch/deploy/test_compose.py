"""compose.yaml: what it starts is what Headrace takes, and what it mounts is there."""

import re
import shutil
import subprocess
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from headrace.launch import cli
from headrace.launch.config import run_file
from tests.needs import missing
from tests.test_architecture import ROOT

FILE = ROOT / "compose.yaml"
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(FILE.read_text())["services"]
OURS = {"broker": "broker", "learner": "learner", "node": "node", "evaluator": "evaluate"}


@pytest.mark.processes
def test_compose_takes_it() -> None:
    if shutil.which("docker-compose") is None:
        missing("docker-compose, which judges compose.yaml, is not here: apt-get install it")
    done = subprocess.run(
        ["docker-compose", "--file", str(FILE), "config", "--quiet"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_every_command_is_one_that_headrace_takes() -> None:
    assert set(SERVICES) == {*OURS, "prometheus", "grafana"}
    for name, command in OURS.items():
        given = cli.parser().parse_args(SERVICES[name]["command"])
        assert given.command == command
        runs = getattr(given, "run", None) or []
        assert {*([runs] if isinstance(runs, str) else runs)} <= {*run_file.shipped()}


def test_prometheus_and_grafana_find_everything_where_their_files_say() -> None:
    """They share the broker's network: our files name 127.0.0.1."""
    assert {one["network_mode"] for one in SERVICES.values() if "network_mode" in one} == {
        "service:broker"
    }
    mounted = {}
    for name in ("prometheus", "grafana"):
        for volume in SERVICES[name]["volumes"]:
            here, there, _ = volume.split(":")
            assert (ROOT / here).is_dir(), here
            mounted[there] = ROOT / here
    assert (mounted["/etc/prometheus"] / "prometheus.yml").is_file()
    provider = mounted["/etc/grafana/provisioning"] / "dashboards/headrace.yaml"
    (path,) = re.findall(r"^ +path: (\S+)", provider.read_text(), re.MULTILINE)
    assert len(list(mounted[path].glob("*.json"))) == 8
    scraped = re.search(r"url: &broker (\S+)/sd", (ROOT / "grafana/prometheus.yml").read_text())
    assert scraped
    words = SERVICES["broker"]["command"]
    assert f"--metrics-port={scraped[1].rpartition(':')[2]}" in words


def test_a_service_has_longer_to_end_than_it_drains() -> None:
    run = run_file.load("cartpole")
    stops = {name: int(SERVICES[name]["stop_grace_period"][:-1]) for name in OURS}
    assert stops["node"] > run.actor.drain_s + 10
    assert stops["broker"] > run.actor.drain_s + 20
    assert stops["learner"] >= run.learner.rank_timeout_s + 45
