"""Every role's metrics, registered as the role does it, with nothing running behind them."""

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple, cast
from unittest.mock import patch

import torch
import zmq
from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from headrace.actors.metrics import SamplerMetrics
from headrace.broker.journal.journal import Journal
from headrace.broker.ledger.ledger import Ledger
from headrace.broker.ledger.state import LedgerState
from headrace.broker.peers.learner import LearnerEnd
from headrace.broker.peers.learner_ends import LearnerEnds
from headrace.broker.peers.sampler import SamplerEnd
from headrace.broker.protocol.hello_payload import HelloPayload
from headrace.broker.protocol.messages import Hello
from headrace.broker.server.connections.counters import Counters
from headrace.broker.server.connections.roster import Roster
from headrace.broker.server.metrics import BrokerMetrics
from headrace.broker.server.server import Server
from headrace.broker.transport import endpoints
from headrace.broker.transport.key_gate import Gate
from headrace.launch.config import run_file
from headrace.launch.node.metrics import NodeMetrics
from headrace.launch.roles.evaluation.evaluation_results import EvaluatorMetrics
from headrace.launch.web import http
from headrace.learner.batches.receiver import UnrollReceiver
from headrace.learner.metrics import LearnerMetrics

_NOBODY = "tcp://127.0.0.1:1"


class MetricDescription(NamedTuple):
    """Describes one metric, as a scrape names it."""

    name: str  # of a histogram without _bucket, _sum and _count
    kind: str
    labels: dict[str, tuple[str, ...]]  # with the values that are known before anything happens
    words: str
    roles: tuple[str, ...]

    @property
    def series(self) -> tuple[str, ...]:
        """Returns the series names that an expression may hold."""
        if self.kind != "histogram":
            return (self.name,)
        return tuple(f"{self.name}_{end}" for end in ("bucket", "sum", "count"))


def all_metrics() -> list[MetricDescription]:
    """Returns the metrics of all roles, by name."""
    return asyncio.run(_all_metrics())  # a broker's sockets must be made in a loop


_ENDS = {"counter": "_total", "info": "_info"}  # what a scrape adds to the names of a kind


async def _all_metrics() -> list[MetricDescription]:
    found: dict[str, MetricDescription] = {}
    for role, make in _ROLES.items():
        with make() as registry:
            for one in _of(registry, role):
                known = found.get(one.name, one)
                roles = tuple(dict.fromkeys((*known.roles, role)))
                found[one.name] = known._replace(roles=roles)
    return [found[name] for name in sorted(found)]


def _of(registry: CollectorRegistry, role: str) -> Iterator[MetricDescription]:
    labelnames = _labelnames(registry)
    for family in registry.collect():
        name = family.name + _ENDS.get(family.type, "")
        known = labelnames.get(family.name) or getattr(family, "_labelnames", None) or ()
        labels: dict[str, dict[str, None]] = {label: {} for label in known}
        for sample in family.samples:
            for label, value in sample.labels.items():
                if label != "le":
                    labels.setdefault(label, {})[value] = None
        if name.endswith("_info"):  # its label values describe one machine
            labels = {label: {} for label in labels}
        values = {label: tuple(known) for label, known in labels.items()}
        yield MetricDescription(name, family.type, values, family.documentation, (role,))


def _labelnames(registry: CollectorRegistry) -> dict[str, tuple[str, ...]]:
    """Returns label names from the collectors: a scrape does not show labels without a value."""
    collectors: dict[str, Collector] = registry._names_to_collectors
    return {name: getattr(made, "_labelnames", ()) for name, made in collectors.items()}


@contextmanager
def _broker() -> Iterator[CollectorRegistry]:
    run = run_file.Run()
    registry = http.registry("broker")
    http.set_run_info(registry, run="", algorithm="", env="")
    with tempfile.TemporaryDirectory() as folder, zmq.Context() as context:
        gate = Gate(context, Path(folder))  # with keys, which add a metric
        router, publisher = endpoints.router(context, None), endpoints.publisher(context, None)
        BrokerMetrics(
            registry,
            Server(
                run.broker,
                Ledger(
                    LedgerState(
                        batch=1, max_lag=0, max_lag_hard=1, queue_bytes=1, attempts=1, first_tag=1
                    ),
                    lease_s=1.0,
                ),
                Counters(),
                inc=1,
                shared={},
                roster=Roster("", lambda _: None),
                announce="",
                router=router,
                publisher=publisher,
                gate=gate,
            ),
        )
        yield registry
        context.destroy(linger=0)


@contextmanager
def _learner() -> Iterator[CollectorRegistry]:
    """Registers as if there were a GPU: the page must not depend on the machine that generates
    it."""
    registry = http.registry("learner")
    http.set_run_info(registry, run="", algorithm="", env="")
    with zmq.Context() as context, patch.object(torch.cuda, "is_available", return_value=True):
        ends = LearnerEnds(
            [partial(LearnerEnd, _NOBODY, Hello("learner", "", inc=1), HelloPayload())],
            rank=0,
            world=1,
            batch=1,
            room=lambda: 0,
            accept=lambda *_: None,
            journal=Journal(None, ""),
            context=context,
        )
        # The metrics use nothing of a feed but its ends.
        LearnerMetrics(registry).watch(cast(UnrollReceiver, SimpleNamespace(ends=ends)))
        yield registry
        context.destroy(linger=0)


@contextmanager
def _actor() -> Iterator[CollectorRegistry]:
    registry = http.registry("actor")
    metrics = SamplerMetrics(registry)
    with zmq.Context() as context:
        metrics.watch(
            SamplerEnd(_NOBODY, name="", inc=1, context=context, journal=Journal(None, ""))
        )
        yield registry
        context.destroy(linger=0)


@contextmanager
def _evaluator() -> Iterator[CollectorRegistry]:
    registry = http.registry("evaluator")
    EvaluatorMetrics(registry)
    yield registry


@contextmanager
def _node() -> Iterator[CollectorRegistry]:
    registry = http.registry("node")
    NodeMetrics(registry, {})
    yield registry


_ROLES = {
    "broker": _broker,
    "learner": _learner,
    "actor": _actor,
    "evaluator": _evaluator,
    "node": _node,
}
