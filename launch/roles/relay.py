"""Puts a node's relay together: it fetches each version of the weights once for its machine, and
lays it on a shelf."""

import asyncio
import functools
import logging
import os
import shutil
import time
from pathlib import Path
from typing import Any

import zmq

from headrace.broker.peers.relay import RelayEnd
from headrace.broker.weights.weight_shelf import WeightShelf
from headrace.launch.config import keyring
from headrace.launch.process import logs, runtime
from headrace.launch.process.node_reports import ProcessFigures, ReportSender
from headrace.launch.roles import expected_errors

log = logging.getLogger(__name__)

_DYING_S = 0.3


def relay(
    broker: str, *, name: str, shelf: Path, key: Path | None, sender: ReportSender, port: int
) -> int:
    """Relays weights until SIGTERM. It outlives the run: its node knows when all samplers are done.
    `port`: where the node serves metrics."""
    own_key = keyring.from_file(key, "actor")
    node = os.getppid()

    async def main() -> int:
        laid = WeightShelf(shelf)
        laid.reserve(0)  # so that samplers see somebody attend to it
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        end = RelayEnd(
            broker,
            name=name,
            inc=runtime.incarnation(),
            shelf=laid,
            context=context,
            key=own_key,
            port=port,
        )
        end.link.reports = logs.reports()

        def figures() -> ProcessFigures:
            stats = {
                "version": float(laid.version),
                "bytes": float(end.nbytes),
                "fetches": float(end.fetches),
            }
            return ProcessFigures(os.getpid(), end.link.welcome is not None, False, 0.0, stats)

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(end.link.run(), name="link")
                group.create_task(sender.keep_sending(figures), name="tell")
                try:
                    await asyncio.Event().wait()
                finally:
                    end.leave("stopped")  # while there is a link
        finally:
            laid.close()
            if _orphaned(node):  # it was killed, and leaves this to us
                shutil.rmtree(shelf.parent, ignore_errors=True)
            context.destroy(linger=500)
        return runtime.OK

    return runtime.run_async(main)


def _orphaned(node: int) -> bool:
    """Says whether the node is dead. The signal of its death may come while its last threads are
    still dying, so it waits a moment."""
    until = time.monotonic() + _DYING_S
    while os.getppid() == node and time.monotonic() < until:
        time.sleep(0.005)
    return os.getppid() != node


def guarded(broker: str, **options: Any) -> int:
    """Runs `relay`; returns its exit status, and logs every expected failure in one line."""
    return expected_errors.guarded(functools.partial(relay, broker, **options))
