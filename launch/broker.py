"""The broker process, put together."""

import json
import logging
from pathlib import Path
from typing import Any

import zmq

from broker import endpoints
from broker.book import Book
from broker.ledger import Ledger
from broker.metrics import BrokerMetrics
from broker.roster import Roster
from broker.server import Server
from launch import config, process

log = logging.getLogger(__name__)


def serve(
    run: config.Run, *, bind: str, metrics_host: str, metrics_port: int | None, report: Path | None
) -> int:
    """Until SIGTERM."""
    return process.run_async(
        lambda: _serve(
            run, bind=bind, metrics_host=metrics_host, metrics_port=metrics_port, report=report
        )
    )


async def _serve(
    run: config.Run, *, bind: str, metrics_host: str, metrics_port: int | None, report: Path | None
) -> int:
    inc = process.incarnation()
    shared = config.shared(run)
    registry = process.registry()
    metrics = BrokerMetrics(registry)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        router, publisher = endpoints.router(context), endpoints.publisher(context)
        address = endpoints.bind(router, endpoints.check(bind))
        announce = endpoints.bind(
            # Beside a port that was chosen for us the next one need not be free.
            publisher,
            run.broker.announce
            or endpoints.announce_endpoint(bind if bind.startswith("tcp:") else address),
        )
        # Before the event loop watches the sockets: a taken port must still let go of them.
        port = process.serve_metrics(
            registry, host=metrics_host, port=metrics_port, healthy=lambda: ""
        )
        server = Server(
            run.broker,
            Ledger(_book(run, inc), lease_s=run.broker.lease_s),
            metrics,
            inc=inc,
            shared=config.for_peers(run),
            roster=Roster(run.run.name, lambda other: config.first_difference(shared, other)),
            announce=announce,
            router=router,
            publisher=publisher,
        )
        metrics.watch(server)
        log.info("run %s at %s%s", run.run.name, address, _where(port))
        try:
            await server.run()
        finally:
            _report(server, report)
    finally:
        context.destroy(linger=500)
    return process.OK


def _book(run: config.Run, inc: int) -> Book:
    return Book(
        batch=run.pacing.batch_unrolls,
        max_lag=run.pacing.max_lag,
        max_lag_hard=run.pacing.max_lag_hard,
        queue_bytes=int(run.broker.queue_mb * 2**20),
        attempts=run.broker.attempts,
        # 31 bits of this incarnation above 32 bits of counting.
        first_tag=(inc & 0x7FFFFFFF) << 32,
    )


def _report(server: Server, to: Path | None) -> None:
    if to is None:
        return
    try:
        to.write_text(json.dumps(_totals(server)))
    except OSError as error:  # a full disk must not make a bad end of a good one
        log.error("the broker's report is not written: %s", error)
        process.discard(to)


def _totals(server: Server) -> dict[str, Any]:
    return {
        **server.status(),
        "redelivered": server.ledger.book.redelivered,
        "rolled_back": server.ledger.rolled_back,
        "unaccounted": server.ledger.unaccounted(),
        "unroll_bytes": server.metrics.unroll_bytes,
    }


def _where(port: int | None) -> str:
    return f", metrics at port {port}" if port is not None else ""
