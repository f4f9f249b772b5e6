"""Prometheus' service discovery: who is named, and that nobody can name somebody else."""

import json

from headrace.broker.server.connections.roster import Peer, Roster
from headrace.launch.monitor.prometheus_targets import targets


def test_live_peers_that_serve_metrics_are_named_by_role() -> None:
    roster = Roster("run", lambda _: None)
    for number, (role, target) in enumerate(
        [
            ("actor", "10.0.0.7:9101"),
            ("actor", ""),
            ("learner", "10.0.0.9:9100"),
            ("actor", "10.0.0.8:9101"),
            ("watcher", ""),
        ]
    ):
        roster.join(Peer(bytes([number]), role, "n", number, 0.0, metrics_address=target))
    kind, body = targets(roster)
    assert kind == "application/json"
    assert json.loads(body) == [
        {"targets": ["10.0.0.7:9101", "10.0.0.8:9101"], "labels": {"role": "actor"}},
        {"targets": ["10.0.0.9:9100"], "labels": {"role": "learner"}},
    ]
    roster.forget(0)
    assert "10.0.0.7" not in targets(roster)[1].decode()
