"""A real small run under a real Prometheus: every panel's expressions are asked for."""

import re

from grafana.generate.__main__ import GRAFANA
from grafana.generate.boards import BOARDS, metrics_in, recorded_in
from grafana.generate.registries import all_metrics
from tests.grafana.conftest import Live
from tests.system.commands.test_metrics import scrape
from tests.system.conftest import until

# What a small run without keys, without a GPU and without a league does not have.
NOT_HERE = {
    "headrace_broker_handshakes_total",
    "headrace_learner_gpu_memory_bytes",
    "headrace_samplers_league_games_total",
    "headrace_samplers_league_rating",
}


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
    """Nobody here has what it asks for, or has it only when something is wrong."""
    if query.startswith("ALERTS{"):
        return True
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
        assert said - NOT_HERE == page - NOT_HERE, role
