"""Dashboards and rules: committed as generated, and true to the registries."""

import json
import re
import tomllib
from typing import Any

import pytest

from grafana.generate import registries
from grafana.generate.__main__ import GRAFANA, files
from grafana.generate.boards import BOARDS, dashboards_of, metrics_in, recorded_in
from grafana.generate.grafana_json import SCHEMA_VERSION, WIDTH
from grafana.generate.reference import AD_HOC
from grafana.generate.registries import MetricDescription, all_metrics

NAMES = [board.name for board in BOARDS]
# Grafana's own names of units.
UNITS = {"none", "locale", "short", "s", "bytes", "Bps", "percentunit"}


@pytest.fixture(scope="module")
def metrics() -> list[MetricDescription]:
    return all_metrics()


def committed(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((GRAFANA / "dashboards" / f"{name}.json").read_text())
    return loaded


def panels(board: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def expressions() -> dict[str, str]:
    """Where -> all that dashboards and rules ask for."""
    found = {path.name: path.read_text() for path in GRAFANA.glob("*.yaml")}
    for board in BOARDS:
        for panel in board.panels:
            found[f"{board.name}: {panel.title}"] = "\n".join(panel.queries.values())
    return found


def test_what_is_committed_is_what_is_generated() -> None:
    made = {path.relative_to(GRAFANA).as_posix(): text for path, text in files()}
    there = {path: (GRAFANA / path).read_text(encoding="utf-8") for path in made}
    wrong = [path for path in made if made[path] != there[path]]
    assert not wrong, f"generate {wrong} anew: python -m grafana.generate"
    dashboards = {f"dashboards/{path.name}" for path in (GRAFANA / "dashboards").iterdir()}
    assert dashboards == {path for path in made if path.endswith(".json")}


def test_nobody_asks_for_a_metric_that_is_not_there(metrics: list[MetricDescription]) -> None:
    there = {name for one in metrics for name in one.series}
    rules = set(re.findall(r"record: (\S+)", (GRAFANA / "recording.yaml").read_text()))
    for where, text in expressions().items():
        assert metrics_in(text) <= there, f"{where}: {metrics_in(text) - there}"
        assert recorded_in(text) <= rules, f"{where}: {recorded_in(text) - rules}"


def test_every_metric_is_on_a_panel_or_said_to_be_for_ad_hoc_use(
    metrics: list[MetricDescription],
) -> None:
    boards = dashboards_of(metrics)
    nowhere = {name for name, on in boards.items() if not on}
    assert nowhere == set(AD_HOC)


def test_every_recorded_value_is_asked_for() -> None:
    rules = set(re.findall(r"record: (\S+)", (GRAFANA / "recording.yaml").read_text()))
    asked = "\n".join(text for where, text in expressions().items() if where != "recording.yaml")
    assert rules == recorded_in(asked)


def test_every_metric_is_explained(metrics: list[MetricDescription]) -> None:
    assert [one.name for one in metrics if not one.words] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_dashboard_is_whole(name: str) -> None:
    board = committed(name)
    assert (board["uid"], board["id"]) == (f"headrace-{name}", None)
    assert board["schemaVersion"] == SCHEMA_VERSION
    assert board["description"]
    everything = board["panels"]
    assert [panel["id"] for panel in everything] == list(range(1, len(everything) + 1))
    titles = [panel["title"] for panel in panels(board)]
    assert len(set(titles)) == len(titles)
    for panel in panels(board):
        assert panel["title"] and panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, panel["title"]
        for asks in (panel, *panel["targets"]):
            assert asks["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        for target in panel["targets"]:
            assert "job" in target["expr"], f"{panel['title']}: of which run?"
            # A window that Grafana does not choose is empty or too long at some zoom.
            for window in re.findall(r"\[([^\]]+)\]", target["expr"]):
                assert window in ("$__rate_interval", "10m"), panel["title"]


@pytest.mark.parametrize("name", NAMES)
def test_no_panel_lies_on_another(name: str) -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in committed(name)["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= WIDTH
        for x in range(at["x"], at["x"] + at["w"]):
            for y in range(at["y"], at["y"] + at["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]


def test_an_unknown_metric_would_be_seen() -> None:
    assert metrics_in('rate(headrace_broker_typo_total{job="$job"}[5m])') == {
        "headrace_broker_typo_total"
    }
    assert recorded_in("job:headrace_typo:p50 > 1") == {"job:headrace_typo:p50"}
    assert metrics_in("job:headrace_typo:p50 > 1") == set()


def test_grafana_is_told_how_often_prometheus_scrapes() -> None:
    """$__rate_interval is made from it: with another number lines have holes, or are flat."""
    source = (GRAFANA / "provisioning/datasources/prometheus.yaml").read_text()
    scrapes = re.search(r"scrape_interval: (\w+)", (GRAFANA / "prometheus.yml").read_text())
    assert scrapes and f"timeInterval: {scrapes[1]} " in source


# What a run may do without: these roles, their ports, keys, a GPU, env.metrics; and alerts.
OPTIONAL = re.compile(
    r"headrace_(evaluator|node|actor|broker_handshakes|learner_gpu)_|headrace_learner_metric|ALERTS\{"
)


@pytest.mark.parametrize("name", NAMES)
def test_a_panel_without_data_says_why(name: str) -> None:
    (board,) = (board for board in BOARDS if board.name == name)
    for panel in board.panels:
        if all(OPTIONAL.search(query) for query in panel.queries.values()):
            assert panel.none, panel.title


def test_a_table_has_names_for_its_columns_and_a_number_has_colours() -> None:
    for board in BOARDS:
        for panel in board.panels:
            assert bool(panel.columns) == (panel.kind == "table"), panel.title
            assert bool(panel.colours) == (panel.kind == "stat"), panel.title


def test_no_panel_shows_the_age_of_the_scrape() -> None:
    for where, text in expressions().items():
        assert "time()" not in text or where == "alerts.yaml", where


def test_the_series_of_ten_thousand_samplers_are_counted() -> None:
    with registries._ROLES["actor"]() as registry:
        each = sum(len(family.samples) for family in registry.collect())
    assert f"{10_000 * each:,} series" in (GRAFANA / "prometheus.yml").read_text()


def test_a_wheel_carries_all_of_it() -> None:
    wheel = tomllib.loads((GRAFANA.parent / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    carried = set(wheel["targets"]["wheel"]["force-include"])
    tools = {"generate", "tests"}
    assert carried == {f"grafana/{path.name}" for path in GRAFANA.iterdir()} - {
        f"grafana/{name}" for name in tools
    }
