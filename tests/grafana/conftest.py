"""A whole small run and the Prometheus that watches it; started as the system tests start them."""

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.grafana.live_prometheus import Prometheus, watching
from tests.system.commands.test_metrics import port_of
from tests.system.conftest import RUN, Place, place

__all__ = ["place"]

OWN_METRICS = """
metrics = ["episode.l"]
wrappers = [{ id = "gymnasium.wrappers:RecordEpisodeStatistics" }]
"""


class Live(NamedTuple):
    prometheus: Prometheus
    ports: dict[str, int]  # of one process of each role


@pytest.fixture
def live(place: Place) -> Iterator[Live]:
    """Broker, learner, two samplers, evaluator, a node with a third, and who watches them."""
    place.toml("run.toml", RUN.replace("[env]", f"[env]\n{OWN_METRICS}"))
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
    with watching(place, port_of(broker)) as prometheus:
        yield Live(prometheus, {"broker": port_of(broker), **dict(ports)})
