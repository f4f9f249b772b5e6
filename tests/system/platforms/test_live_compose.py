"""compose.yaml, really started: the image's roles, and Debian's Prometheus in the place of its
own, which cannot be fetched; Grafana is left out for the same reason."""

import json
import re
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from tests.launch.deploy.test_compose import FILE, OURS, SERVICES
from tests.system.conftest import until
from tests.system.harness.figures import LONG
from tests.system.platforms.engine import Engine, engine
from tests.system.platforms.image import BASE, NAME, Store, store

__all__ = ["engine", "store"]

LIVES = {"broker": "1", "evaluator": "1", "learner": "1", "node": "1"}  # by role
_PROMETHEUS = (
    "prometheus",
    "--config.file=/etc/prometheus/prometheus.yml",
    "--storage.tsdb.path=/tmp/tsdb",
)


def make_prometheus(store: Store) -> None:
    made = store("from", BASE)
    store("copy", "--quiet", made, "/usr/bin/prometheus", "/usr/bin/prometheus")
    store("config", "--entrypoint", json.dumps(_PROMETHEUS), "--cmd", "", made)
    store("commit", "--quiet", made, SERVICES["prometheus"]["image"])
    store("rm", made)


@pytest.mark.alone
@pytest.mark.skipif(not LONG, reason="builds an image: HEADRACE_SOAK=1")
def test_its_containers_train_are_watched_and_lose_nothing(
    store: Store, engine: Engine, tmp_path: Path
) -> None:
    make_prometheus(store)
    # CartPole's goal is reached in half a minute, which may be before anybody looked.
    command = [*SERVICES["learner"]["command"], "--set=stop.return=none"]
    endless = tmp_path / "endless.yaml"
    endless.write_text(
        yaml.safe_dump({"version": "2.4", "services": {"learner": {"command": command}}})
    )
    compose = ("docker-compose", "--project-name=hr", f"--file={FILE}", f"--file={endless}")

    said = engine.run(*compose, "up", "--detach", *OURS, "prometheus")
    state = ("podman", "ps", "--all", "--format", "{{.Names}} {{.Status}}")

    def up() -> bool:
        asked = "http://127.0.0.1:9090/api/v1/query?query=sum%20by(role)(up)"
        found = json.loads(engine.get(asked) or '{"data": {"result": []}}')["data"]["result"]
        return {one["metric"]["role"]: one["value"][1] for one in found} == LIVES

    until(up, "all targets", why=lambda: f"\n{said}\n{engine.run(*state)}")
    targets = json.loads(engine.get("http://127.0.0.1:9100/sd"))
    assert {one["labels"]["role"] for one in targets} == set(LIVES) - {"broker"}
    asked = "http://127.0.0.1:9090/api/v1/query?query=headrace_evaluator_version"
    until(lambda: '"value"' in engine.get(asked), "an evaluation")
    top = engine.run("podman", "exec", "hr_broker_1", "headrace", "top")
    assert re.search("^state +training$", top, re.MULTILINE), top
    # Podman asks by systemd's timers, which are not there.
    asked = "podman healthcheck run hr_broker_1 && echo healthy"
    assert engine.run("sh", "-c", asked).endswith("healthy")

    engine.run(*compose, "stop", *OURS)
    ended = engine.run(*state)
    assert ended.count("Exited (0)") == len(OURS), ended
    audit = ("run", "--rm", "--network=none", "--volume=hr_ledger:/ledger", NAME)
    said = engine.run("podman", *audit, "audit", "/ledger")
    assert said.endswith("\nexact"), said
