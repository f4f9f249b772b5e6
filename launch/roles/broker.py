"""Puts the broker process together."""

import asyncio
import functools
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import zmq

from headrace.actors.config import LeagueConfig
from headrace.broker import durable
from headrace.broker.journal.journal import Journal
from headrace.broker.ledger.ledger import Ledger
from headrace.broker.ledger.state import LedgerState
from headrace.broker.security.keys import BROKER, Key
from headrace.broker.server.connections.counters import Counters
from headrace.broker.server.connections.roster import Roster
from headrace.broker.server.metrics import BrokerMetrics
from headrace.broker.server.server import Server
from headrace.broker.transport import endpoints
from headrace.broker.transport.key_gate import Gate
from headrace.broker.weights.snapshots import Snapshots
from headrace.launch.config import differences, keyring, run_file, shared_run
from headrace.launch.explain.watched import WatchedRun
from headrace.launch.monitor import prometheus_targets
from headrace.launch.monitor.loop_status import LoopStatus
from headrace.launch.monitor.page import page
from headrace.launch.monitor.traced_status import TracedStatus
from headrace.launch.process import descriptors, logs, runtime, sd_notify
from headrace.launch.roles.options import NOWHERE, Address
from headrace.launch.roles.role import Role
from headrace.launch.web import http

log = logging.getLogger(__name__)

# Between two looks whether this machine has the address by now.
_ADDRESS_S = 1.0
# Between two looks at how the run trains.
_JUDGED_EVERY_S = 2.0


@dataclass(frozen=True, slots=True)
class Options:
    """Holds what the command line says beside the run."""

    bind: str
    metrics: Address = NOWHERE
    report: Path | None = None  # its totals are written there at its end
    ledger: Path | None = None  # the folder of its journal
    key: Path | None = None  # None = the run's, if it works with keys
    insecure: bool = False  # it may listen to other machines without keys
    page_names: Sequence[str] = ()  # further names by which browsers reach the page


@logs.one_line_errors()
def serve(run: run_file.Run, options: Options) -> int:
    """Serves until SIGTERM; returns the exit status."""
    run = descriptors.for_broker(run)
    runtime.collect_rarely()
    return runtime.run_async(lambda: _serve(run, options))


async def _serve(run: run_file.Run, options: Options) -> int:
    with Role("broker", run=run.run.name) as role:
        http.set_run_info(
            role.registry, run=run.run.name, algorithm=run.algorithm.name, env=run.env.id
        )
        shared = shared_run.shared(run)
        roster = Roster(run.run.name, lambda other: differences.first_difference(shared, other))
        roster.brokers = run.broker.shards
        key = _own_key(run, options.key)
        journal = role.open_journal(options.ledger, trace_every=run.unroll.trace_every)
        guarded = options.insecure or key is not None
        await _wait_for_address(endpoints.check_bind(options.bind, guarded=guarded))
        sockets = _bind(run, options, key, role.context)
        status = LoopStatus()
        # Before the event loop watches the sockets: a taken port must still let go of them.
        traces = options.ledger if run.unroll.trace_every else None
        shown = status if traces is None else TracedStatus(status, traces)
        port = _serve_pages(role, options, shown, roster)
        server = Server(
            run.broker,
            Ledger(_ledger_state(run, role.inc, journal), lease_s=run.broker.lease_s),
            Counters(),
            inc=role.inc,
            shared=shared_run.for_peers(run),
            roster=roster,
            announce=sockets.announce,
            router=sockets.router,
            publisher=sockets.publisher,
            gate=sockets.gate,
        )
        # Beside other policies these may meet what this one was, whatever its own share is.
        met = bool(run.env.agents) and run.league != LeagueConfig()
        if run.league.share or met:
            server.weights.keep_past(Snapshots(every=run.league.every, keep=run.league.keep))
        # Who is named twice is one to samplers.
        server.run_status.sampler_totals.league.names = tuple(dict.fromkeys(run.league.others))
        BrokerMetrics(role.registry, server)
        status.set_source(server.status)
        where = f", metrics at port {port}" if port is not None else ""
        log.info("run %s at %s%s%s", run.run.name, sockets.address, where, _kept(sockets.gate))
        try:
            async with asyncio.TaskGroup() as group:
                watch = role.watch(functools.partial(_watchdog_reading, server))
                group.create_task(watch.loop(), name="notify")
                group.create_task(_judge_loop(server, WatchedRun(run)), name="explain")
                await server.run()
        finally:
            _report(server, options.report)
    return runtime.OK


async def _judge_loop(server: Server, watched: WatchedRun) -> None:
    """Says in the status what holds the run back. Ends by cancellation."""
    while True:
        await asyncio.sleep(_JUDGED_EVERY_S)
        told, ready = server.run_status, server.weights.propagation.ready
        watched.look(told.training(), told.sampler_totals.totals, ready)
        told.explained = watched.lines()


async def _wait_for_address(bind: str) -> None:
    """Waits until this machine has the address: a broker may start before the network is up."""
    if not endpoints.is_here(bind):
        log.warning("waits for the address of %s: this machine does not have it", bind)
    while not endpoints.is_here(bind):
        sd_notify.waiting(f"for the address of {bind}")
        await asyncio.sleep(_ADDRESS_S)


class _Sockets(NamedTuple):
    """Holds the broker's sockets, bound."""

    router: zmq.Socket[bytes]
    publisher: zmq.Socket[bytes]
    gate: Gate | None  # None = this run works without keys
    address: str  # of the router
    announce: str  # of the publisher


def _bind(
    run: run_file.Run, options: Options, key: Key | None, context: "zmq.Context[zmq.Socket[bytes]]"
) -> _Sockets:
    bind = options.bind
    # Before the sockets: they ask it from their first connection on.
    gate = None if key is None else _gate(run, context)
    router, publisher = endpoints.router(context, key), endpoints.publisher(context, key)
    if gate is not None:
        gate.watch(router)
        gate.watch(publisher)
    guarded = options.insecure or gate is not None
    address = endpoints.bind(router, bind)
    # Beside a port that was chosen for us the next one need not be free.
    beside = endpoints.announce_endpoint(bind if bind.startswith("tcp:") else address)
    announce = endpoints.bind(
        publisher, endpoints.check_bind(run.broker.announce or beside, guarded=guarded)
    )
    return _Sockets(router, publisher, gate, address, announce)


def _serve_pages(role: Role, options: Options, status: page.Status, roster: Roster) -> int | None:
    """Serves metrics, the page of the run, and Prometheus' targets; returns the port."""
    targets = functools.partial(prometheus_targets.targets, roster)
    return http.serve(
        role.registry,
        host=options.metrics.host,
        port=options.metrics.port,
        healthy=lambda: "",
        stuck=role.stuck,
        pages={**page.pages(status), "/sd": targets},
        names=options.page_names,
    )


def _watchdog_reading(server: Server) -> sd_notify.WatchdogReading:
    """Returns the watchdog's reading. The broker is bound, so peers may come; it works by waiting
    for them, so a reading at all shows that its loop turns, and more cannot be asked of it."""
    state, peers = server.ledger.state, len(server.roster)
    text = f"version {state.credit.version}, {peers} peers, {state.entries} unrolls held"
    return sd_notify.WatchdogReading(
        ready=True, moved=state.received, turns=(), idle=True, text=text
    )


def _own_key(run: run_file.Run, given: Path | None) -> Key | None:
    if given is not None and not run.security.curve:
        raise run_file.ConfigError(
            f"--key {given}: this run works without keys; say --set security.curve=true"
        )
    return keyring.key(run, BROKER, given)


def _gate(run: run_file.Run, context: "zmq.Context[zmq.Socket[bytes]]") -> Gate:
    """Returns the gate of the authorised keys; ConfigError where there are none at start, which is
    a slip, or a disk that is not mounted yet."""
    gate = Gate(context, keyring.authorised(run))
    folder = gate.authorised.folder
    if not gate.authorised.users:
        raise run_file.ConfigError(
            f"{gate.authorised.problem or f'{folder} holds no key that may connect'};"
            f" is it mounted? Make keys with: headrace keygen {folder.parent}"
        )
    return gate


def _ledger_state(run: run_file.Run, inc: int, journal: Journal) -> LedgerState:
    return LedgerState(
        batch=run.pacing.batch_unrolls,
        # Until a learner tells it how many.
        share=run.pacing.batch_unrolls // run.broker.shards if run.broker.shards > 1 else 0,
        max_lag=run.pacing.max_lag,
        balanced=run.pacing.balance == "environments",
        max_lag_hard=run.pacing.max_lag_hard,
        queue_bytes=int(run.broker.queue_mb * 2**20),
        attempts=run.broker.attempts,
        # 31 bits of this incarnation above 32 bits of counting.
        first_tag=(inc & 0x7FFFFFFF) << 32,
        journal=journal,
    )


def _report(server: Server, to: Path | None) -> None:
    if to is None:
        return
    try:
        durable.write(to, json.dumps(_totals(server)))
    except OSError as error:  # a full disk must not make a bad end of a good one
        log.error("the broker's report is not written: %s", error)


def _totals(server: Server) -> dict[str, Any]:
    return {
        **server.status(),
        "redelivered": server.ledger.state.redelivered,
        "rolled_back": server.ledger.versions.rolled_back,
        "unaccounted": server.ledger.unaccounted(),
        "unroll_bytes": server.counters.unroll_bytes,
        "samplers": {k: n for k, n in server.run_status.sampler_totals.totals.items() if n},
    }


def _kept(gate: Gate | None) -> str:
    return f", for {len(gate.authorised.users)} keys" if gate is not None else ""
