"""Alerts that no healthy run shows: each is made to fire by real processes with a fault in them."""

import shutil
import signal
from pathlib import Path

import pytest

from tests.grafana.live_prometheus import hasty_rules, watching
from tests.system.commands.test_metrics import port_of
from tests.system.conftest import Place, Process, until

FIRING = 'max by (alertname, instance) (max_over_time(ALERTS{alertstate="firing"}[1h]))'


@pytest.mark.processes
def test_faults_fire_their_alerts(place: Place) -> None:
    """A broker that miscounts, a sampler that acts with old weights, one that leaks, an evaluator
    that hangs, samplers that are gone."""
    shutil.copy(Path(__file__).with_name("faulty.py"), place.folder)
    text = Path(place.run).read_text().replace("max_lag = 2", "max_lag = 2\nmax_lag_hard = 8")
    place.run = place.toml("run.toml", text)
    port = ("--metrics-port", "0")

    def faulty(fault: str, *words: str) -> Process:
        return place.module("faulty", fault, *words, *port)

    there = ("--broker", place.ipc)
    broker = faulty("miscount", "broker", "--run", place.run, "--bind", place.ipc)
    place.learner()
    faulty("old", "actor", *there, "--name", "old")
    leaking = faulty("leak", "actor", *there, "--name", "leaking")
    sound = place.actor("--name", "sound")
    evaluator = place.headrace("evaluate", *there, "--episodes", "1", "--every-s", "0.5", *port)
    at = {
        name: f"127.0.0.1:{port_of(one)}"
        for name, one in {"broker": broker, "leaking": leaking}.items()
    }

    with watching(place, port_of(broker), hasty_rules(place.folder)) as prometheus:

        def fires(*wanted: tuple[str, str]) -> None:
            def all_of_them() -> bool:
                found = prometheus.ask("query", query=FIRING)["result"]
                fired = {(a["metric"]["alertname"], a["metric"].get("instance", "")) for a in found}
                return set(wanted) <= fired

            until(all_of_them, f"{wanted} to fire")

        wanted = {"broker": 1, "actor": 2, "evaluator": 1}
        until(lambda: prometheus.up().items() >= wanted.items(), f"targets: {wanted}")
        fires(
            ("LedgerUnaccounted", at["broker"]), ("StaleRatio", ""), ("MemorySlope", at["leaking"])
        )
        evaluator.signal(signal.SIGSTOP)
        sound.kill()
        fires(("EvalStale", at["broker"]), ("FleetShrunk", at["broker"]))
        evaluator.signal(signal.SIGCONT)
