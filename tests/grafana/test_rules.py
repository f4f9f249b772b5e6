"""Alerts and recording rules: Prometheus takes them, they fire as they should, all is explained."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from grafana.generate.__main__ import GRAFANA
from tests.needs import missing

ALERTS = (GRAFANA / "alerts.yaml").read_text()
# Name -> all that stands under it.
RULES = dict(re.findall(r"- alert: (\w+)\n(.*?)(?=\n\n|\Z)", ALERTS, re.DOTALL))
CASES = sorted((GRAFANA / "tests").glob("*.yaml"))
# An external label is the setting; whoever reads an alert has no checkout to look into.
RUNBOOK_URL = (
    "{{ with $externalLabels.runbook }}{{ . }}{{ else }}"
    '{{ with query (printf "up{role=~\\".+\\",job=~%q} == 1" (or $labels.job ".+")) }}'
    'http://{{ . | first | label "instance" }}/runbook'
    "{{ else }}http://127.0.0.1:9100/runbook{{ end }}{{ end }}"
)
PAGES = {
    "RoleAbsent",
    "LearnerStalled",
    "LedgerUnaccounted",
    "NonFinite",
    "CheckpointTooOld",
    "NoProgressEndToEnd",
}
TICKETS = {
    "LearnerStarved",
    "BrokerNearLimit",
    "LagHigh",
    "StaleRatio",
    "Redeliveries",
    "Poison",
    "AuthFailures",
    "WeightsSkew",
    "CrashLoop",
    "FdNearLimit",
    "MemorySlope",
    "ClockSkew",
    "EvalStale",
    "FleetShrunk",
    "DeadMansSwitch",
}


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    if shutil.which("promtool") is None:
        missing(
            "promtool, which judges the rules, is not here; on Debian: apt-get install prometheus"
        )
    return subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=120)


@pytest.mark.processes
def test_prometheus_takes_the_configuration_and_its_rules() -> None:
    done = promtool("check", "config", GRAFANA / "prometheus.yml")
    assert done.returncode == 0, done.stderr
    assert "duplicate" not in done.stdout + done.stderr
    done = promtool("check", "rules", "--lint-fatal", *GRAFANA.glob("[ar]*.yaml"))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.processes
@pytest.mark.parametrize("case", CASES, ids=lambda path: path.name)
def test_rules_say_what_they_should(case: Path) -> None:
    done = promtool("test", "rules", case)
    assert done.returncode == 0, done.stdout + done.stderr


def test_there_are_all_alerts_and_each_fires_in_one_case_and_is_quiet_in_one() -> None:
    assert set(RULES) == PAGES | TICKETS
    text = "\n".join(path.read_text() for path in CASES)
    asked = re.findall(r"alertname: (\w+)\n\s+exp_alerts:( \[\])?", text)
    assert set(asked) == {(name, quiet) for name in RULES for quiet in ("", " []")}


@pytest.mark.parametrize("name", sorted(RULES))
def test_an_alert_is_whole(name: str) -> None:
    rule = RULES[name]
    assert f"severity: {'page' if name in PAGES else 'ticket'}" in rule
    for key in ("summary", "description"):
        assert re.search(rf"^ +{key}: '.+'$", rule, re.MULTILINE), key
    assert f"runbook_url: '{RUNBOOK_URL}#{name.lower()}'" in rule


def test_the_runbook_has_a_section_for_each_in_their_order() -> None:
    book = (GRAFANA / "RUNBOOK.md").read_text()
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", book, re.DOTALL | re.MULTILINE))
    assert list(sections) == list(RULES)
    for name, text in sections.items():
        for part in ("**Means.** ", "**Look at.** ", "**Do.** "):
            assert part in text, f"{name}: {part}"
