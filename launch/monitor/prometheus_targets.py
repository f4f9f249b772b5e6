"""Prometheus' HTTP service discovery: every live peer that serves metrics, by role.

The broker itself is left out: a client that asks it knows where it is.
"""

import json

from headrace.broker.server.connections.roster import Roster

_KIND = "application/json"


def targets(roster: Roster) -> tuple[str, bytes]:
    """Returns the content type and the body."""
    by_role: dict[str, list[str]] = {}
    for peer in roster.everybody():
        if peer.metrics_address:
            by_role.setdefault(peer.role, []).append(peer.metrics_address)
    found = [
        {"targets": sorted(set(where)), "labels": {"role": role}}
        for role, where in sorted(by_role.items())
    ]
    return _KIND, json.dumps(found).encode()
