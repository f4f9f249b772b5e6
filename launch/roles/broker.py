"""Puts the broker process together."""

import asyncio
import functools
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import zmq

from headrace.broker import durable
from headrace.broker.journal.journal import Journal
from headrace.broker.ledger.ledger import Ledger
from headrace.broker.ledger.state import LedgerState
from headrace.broker.security.keys import BROKER, Key
from headrace.broker.server.connections.counters import Counters
from headrace.broker.server.connections.roster import Roster
from headrace.broker.server.memory_guard import MemoryExceededError
from headrace.broker.server.metrics import BrokerMetrics
from headrace.broker.server.server import Server
from headrace.broker.transport import endpoints
from headrace.broker.transport.endpoints import EndpointError
from headrace.broker.transport.key_gate import Gate
from headrace.launch.config import differences, keyring, run_file, shared_run
from headrace.launch.config.keyring import open_journal
from headrace.launch.monitor import prometheus_targets
from headrace.launch.monitor.loop_status import LoopStatus
from headrace.launch.monitor.page import page
from headrace.launch.process import descriptors, http, logs, runtime, sd_notify

log = logging.getLogger(__name__)


def serve(
    run: run_file.Run,
    *,
    bind: str,
    metrics_host: str,
    metrics_port: int | None,
    report: Path | None,
    key: Path | None = None,
    insecure: bool = False,
    ledger: Path | None = None,
    page_names: Sequence[str] = (),
) -> int:
    """Serves until SIGTERM; returns the exit status. Every expected failure is logged in one
    line."""
    try:
        run = descriptors.for_broker(run)
        return runtime.run_async(
            lambda: _serve(
                run,
                bind=bind,
                metrics_host=metrics_host,
                metrics_port=metrics_port,
                report=report,
                key=key,
                insecure=insecure,
                ledger=ledger,
                page_names=page_names,
            )
        )
    except (EndpointError, run_file.ConfigError, http.PortError) as error:
        log.error("%s", error)
        return runtime.YOUR_INPUT
    except ExceptionGroup as group:
        if group.subgroup(MemoryExceededError) is None:
            raise
        log.error("%s", runtime.exit_line(group))
        return runtime.OUR_FAULT


async def _serve(
    run: run_file.Run,
    *,
    bind: str,
    metrics_host: str,
    metrics_port: int | None,
    report: Path | None,
    key: Path | None = None,
    insecure: bool = False,
    ledger: Path | None = None,
    page_names: Sequence[str] = (),
) -> int:
    inc = runtime.incarnation()
    logs.set_identity(run=run.run.name, inc=inc)
    shared = shared_run.shared(run)
    registry = http.registry("broker")
    http.set_run_info(registry, run=run.run.name, algorithm=run.algorithm.name, env=run.env.id)
    roster = Roster(run.run.name, lambda other: differences.first_difference(shared, other))
    own_key = _own_key(run, key)
    journal = None if ledger is None else open_journal(ledger, "broker", inc)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        # Before the sockets: they ask it from their first connection on.
        gate = None if own_key is None else _gate(run, context)
        router, publisher = (
            endpoints.router(context, own_key),
            endpoints.publisher(context, own_key),
        )
        if gate is not None:
            gate.watch(router)
            gate.watch(publisher)
        guarded = insecure or gate is not None
        address = endpoints.bind(router, endpoints.check_bind(bind, guarded=guarded))
        # Beside a port that was chosen for us the next one need not be free.
        beside = endpoints.announce_endpoint(bind if bind.startswith("tcp:") else address)
        announce = endpoints.bind(
            publisher, endpoints.check_bind(run.broker.announce or beside, guarded=guarded)
        )
        # Before the event loop watches the sockets: a taken port must still let go of them.
        status = LoopStatus()
        port = http.serve(
            registry,
            host=metrics_host,
            port=metrics_port,
            healthy=lambda: "",
            pages={
                **page.pages(status),
                "/sd": functools.partial(prometheus_targets.targets, roster),
            },
            names=page_names,
        )
        server = Server(
            run.broker,
            Ledger(_book(run, inc, journal), lease_s=run.broker.lease_s),
            Counters(),
            inc=inc,
            shared=shared_run.for_peers(run),
            roster=roster,
            announce=announce,
            router=router,
            publisher=publisher,
            gate=gate,
        )
        BrokerMetrics(registry, server)
        status.set_source(server.status)
        log.info("run %s at %s%s%s", run.run.name, address, _where(port), _kept(gate))
        try:
            async with asyncio.TaskGroup() as group:
                watch = sd_notify.Watchdog(functools.partial(_watchdog_reading, server))
                group.create_task(watch.loop(), name="notify")
                await server.run()
        finally:
            _report(server, report)
    finally:
        context.destroy(linger=500)
        if journal is not None:
            journal.close()
    return runtime.OK


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


def _book(run: run_file.Run, inc: int, journal: Journal | None) -> LedgerState:
    return LedgerState(
        batch=run.pacing.batch_unrolls,
        max_lag=run.pacing.max_lag,
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
    }


def _kept(gate: Gate | None) -> str:
    return f", for {len(gate.authorised.users)} keys" if gate is not None else ""


def _where(port: int | None) -> str:
    return f", metrics at port {port}" if port is not None else ""
