"""A real small run under a real Prometheus: every panel's expressions are asked for."""

import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from grafana.generate.__main__ import GRAFANA
from grafana.generate.boards import BOARDS, metrics_in, recorded_in
from grafana.generate.registries import all_metrics
from tests import ports
from tests.needs import missing
from tests.system.commands.test_metrics import port_of, scrape
from tests.system.conftest import Place, Process, until

# What a small run without keys and without a GPU does not have.
NOT_HERE = {"headrace_broker_handshakes_total", "headrace_learner_gpu_memory_bytes"}


class Prometheus:
    """One that scrapes each second."""

    def __init__(self, place: Place, config: Path) -> None:
        self.port = ports.free()
        log = place.folder / "prometheus.log"
        with log.open("wb") as file:
            popen = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={config}",
                    f"--storage.tsdb.path={place.folder}/tsdb",
                    f"--web.listen-address=127.0.0.1:{self.port}",
                ],
                stdout=file,
                stderr=file,
            )
        self.process = Process(popen, log)
        self.process.says("ready to receive web requests")

    def ask(self, path: str, **parameters: str) -> Any:
        """The data of an answer; an expression that it does not take is an error."""
        query = urllib.parse.urlencode(parameters)
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{query}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{parameters}: {error.read().decode()}") from None

    def up(self) -> dict[str, int]:
        """Role -> targets that answer."""
        found = self.ask("query", query="sum by (role) (up)")["result"]
        return {one["metric"]["role"]: int(one["value"][1]) for one in found}


class Live(NamedTuple):
    prometheus: Prometheus
    ports: dict[str, int]  # of one process of each role


@pytest.fixture
def live(place: Place) -> Iterator[Live]:
    """Broker, learner, two samplers, evaluator, a node with a third, and who watches them."""
    if shutil.which("prometheus") is None:
        missing(
            "prometheus, which dashboards ask, is not here; on Debian: apt-get install prometheus"
        )
    port = ("--metrics-port", "0")
    broker, learner = place.broker(*port), place.learner(*port)
    actors = [place.actor(*port, "--name", name) for name in ("a", "b")]
    evaluator = place.headrace(
        "evaluate", "--broker", place.ipc, "--episodes", "2", "--every-s", "1", *port
    )
    node = place.headrace("node", "--broker", place.ipc, "--samplers", "1", *port)
    roles = [
        ("learner", learner),
        *(("actor", one) for one in actors),
        ("evaluator", evaluator),
        ("node", node),
    ]
    ports = [(role, port_of(process)) for role, process in roles]
    config = place.folder / "prometheus.yml"
    config.write_text(configuration(port_of(broker)))
    prometheus = Prometheus(place, config)
    try:
        yield Live(prometheus, {"broker": port_of(broker), **dict(ports)})
    finally:
        prometheus.process.kill()


def configuration(broker: int) -> str:
    """The shipped one: its one line edited, at the pace of a test."""
    text = (GRAFANA / "prometheus.yml").read_text()
    text, edited = re.subn(
        r"http://\S+(/sd  # <- edit this line)", rf"http://127.0.0.1:{broker}\1", text
    )
    assert edited == 1
    text = re.sub(r"\b(\w+_interval): 10s", r"\1: 1s", text)
    text = re.sub(r"- (\w+\.yaml)", rf"- {GRAFANA}/\1", text)
    return text


def expressions() -> dict[str, str]:
    """Where -> expression, as Grafana would send it."""
    found = {}
    for board in BOARDS:
        for panel in board.panels:
            for legend, query in panel.queries.items():
                sent = query.replace("$__rate_interval", "10s").replace("$job", "headrace")
                found[f"{board.name}: {panel.title}: {legend}"] = sent
    return found


def not_expected(query: str) -> bool:
    """Nobody here has what it asks for."""
    rules = (GRAFANA / "recording.yaml").read_text()
    for rule in recorded_in(query):
        made = re.search(rf"record: {rule}\n(.*?)(?=- record|\Z)", rules, re.DOTALL)
        assert made
        query += made[1]
    return any(name in NOT_HERE for name in metrics_in(query))


def test_every_panel_of_a_real_run_has_data(live: Live) -> None:
    prometheus, ports = live
    want = {"broker": 1, "learner": 1, "actor": 2, "evaluator": 1, "node": 1}
    until(lambda: prometheus.up() == want, f"all targets: {want}")

    # Every expression is taken, and all that can have data have some.
    asked = expressions()
    lacking = {where: query for where, query in asked.items() if not not_expected(query)}
    for query in asked.values():
        prometheus.ask("query", query=query)

    def complete() -> bool:
        for where, query in list(lacking.items()):
            if prometheus.ask("query", query=query)["result"]:
                del lacking[where]
        return not lacking

    try:
        until(complete, "data")
    except AssertionError:
        raise AssertionError(f"no data for {lacking}") from None

    # Whose sessions: the metric's own "role", not that of the target.
    (sessions,) = prometheus.ask("query", query='headrace_broker_sessions{role="actor"}')["result"]
    assert sessions["value"][1] == "3"

    # Rules are evaluated without an error, and a healthy run is quiet.
    def evaluated() -> bool:
        groups = prometheus.ask("rules")["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        errors = [rule["lastError"] for rule in rules if rule.get("lastError")]
        assert not errors
        return len(rules) == 31 and all(rule["health"] == "ok" for rule in rules)

    until(evaluated, "all rules to be evaluated")
    alerts = prometheus.ask("alerts")["alerts"]
    assert {a["labels"]["alertname"] for a in alerts if a["state"] == "firing"} == {
        "DeadMansSwitch"
    }

    # The metrics reference says what the processes say: its registries are put together as the
    # roles do it.
    described_now = all_metrics()
    for role, port in ports.items():
        page = {one.name for one in described_now if role in one.roles}
        families = scrape(port).values()
        said = {f"{one.name}_total" if one.type == "counter" else one.name for one in families}
        said = {name for name in said if not name.endswith("_created")}
        assert said - NOT_HERE == page - NOT_HERE, role
