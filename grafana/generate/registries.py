"""Every role's metrics, put together as the role does it, with nothing that runs behind them."""

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple, cast
from unittest.mock import patch

import torch
import zmq
from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from headrace.actors.metrics import ActorMetrics
from headrace.broker.journal.journal import Journal
from headrace.broker.ledger.ledger import Ledger
from headrace.broker.ledger.state import Book
from headrace.broker.peers.learner import LearnerEnd
from headrace.broker.peers.sampler import ActorEnd
from headrace.broker.server.connections.counters import Counters
from headrace.broker.server.connections.roster import Roster
from headrace.broker.server.metrics import BrokerMetrics
from headrace.broker.server.server import Server
from headrace.broker.transport import endpoints
from headrace.broker.transport.gate import Gate
from headrace.launch.config import run_file
from headrace.launch.node.metrics import NodeMetrics
from headrace.launch.process import http
from headrace.launch.roles.evaluation_results import EvaluatorMetrics
from headrace.learner.batches.receiver import Feed
from headrace.learner.metrics import LearnerMetrics

_NOBODY = "tcp://127.0.0.1:1"


class Described(NamedTuple):
    """One metric, as a scrape names it."""

    name: str  # of a histogram without _bucket, _sum and _count
    kind: str
    labels: dict[str, tuple[str, ...]]  # with the values that are known before anything happens
    words: str
    roles: tuple[str, ...]

    @property
    def series(self) -> tuple[str, ...]:
        """Names that an expression may hold."""
        if self.kind != "histogram":
            return (self.name,)
        return tuple(f"{self.name}_{end}" for end in ("bucket", "sum", "count"))


def described() -> list[Described]:
    """The metrics of all roles, by name."""
    return asyncio.run(_described())  # a broker's sockets want a loop to be put together in


_ENDS = {"counter": "_total", "info": "_info"}  # what a scrape adds to the names of a kind


async def _described() -> list[Described]:
    found: dict[str, Described] = {}
    for role, make in _ROLES.items():
        with make() as registry:
            for one in _of(registry, role):
                known = found.get(one.name, one)
                roles = tuple(dict.fromkeys((*known.roles, role)))
                found[one.name] = known._replace(roles=roles)
    return [found[name] for name in sorted(found)]


def _of(registry: CollectorRegistry, role: str) -> Iterator[Described]:
    labelnames = _labelnames(registry)
    for family in registry.collect():
        name = family.name + _ENDS.get(family.type, "")
        known = labelnames.get(family.name) or getattr(family, "_labelnames", None) or ()
        labels: dict[str, dict[str, None]] = {label: {} for label in known}
        for sample in family.samples:
            for label, value in sample.labels.items():
                if label != "le":
                    labels.setdefault(label, {})[value] = None
        if name.endswith("_info"):  # its labels say what there is on one machine
            labels = {label: {} for label in labels}
        values = {label: tuple(known) for label, known in labels.items()}
        yield Described(name, family.type, values, family.documentation, (role,))


def _labelnames(registry: CollectorRegistry) -> dict[str, tuple[str, ...]]:
    """Of metrics whose label has no value yet: a scrape does not show it."""
    collectors: dict[str, Collector] = registry._names_to_collectors
    return {name: getattr(made, "_labelnames", ()) for name, made in collectors.items()}


@contextmanager
def _broker() -> Iterator[CollectorRegistry]:
    run = run_file.Run()
    registry = http.registry("broker")
    http.set_run_info(registry, run="", algorithm="", env="")
    with tempfile.TemporaryDirectory() as folder, zmq.Context() as context:
        gate = Gate(context, Path(folder))  # with keys: there is a metric that nobody else has
        router, publisher = endpoints.router(context, None), endpoints.publisher(context, None)
        BrokerMetrics(
            registry,
            Server(
                run.broker,
                Ledger(
                    Book(
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
    """As if there was a GPU: the page shall not depend on the machine on which it was made."""
    registry = http.registry("learner")
    http.set_run_info(registry, run="", algorithm="", env="")
    with zmq.Context() as context, patch.object(torch.cuda, "is_available", return_value=True):
        end = LearnerEnd(
            _NOBODY,
            name="",
            inc=1,
            rank=0,
            world=1,
            run="",
            shared={},
            spaces=("", ""),
            unroll_bytes=1,
            accept=lambda *_: None,
            free=lambda: 0,
            journal=Journal(None, ""),
            context=context,
        )
        # All that they ask a feed for is its end.
        LearnerMetrics(registry).watch(cast(Feed, SimpleNamespace(end=end)))
        yield registry
        context.destroy(linger=0)


@contextmanager
def _actor() -> Iterator[CollectorRegistry]:
    registry = http.registry("actor")
    metrics = ActorMetrics(registry)
    with zmq.Context() as context:
        metrics.watch(ActorEnd(_NOBODY, name="", inc=1, context=context, journal=Journal(None, "")))
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
