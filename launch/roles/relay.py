"""Puts a node's relay together: the connection to the broker for all samplers of its machine. It
fetches each version of the weights once for them, and lays it on a shelf."""

import asyncio
import functools
import logging
import os
import shutil
import time
from pathlib import Path

from headrace.broker.peers.relay import RelayEnd
from headrace.broker.weights.weight_shelf import WeightShelf
from headrace.launch.config import keyring
from headrace.launch.process import logs, runtime
from headrace.launch.process.node_reports import ProcessFigures, ReportSender
from headrace.launch.roles.gone_broker import ANEW, BrokerGoneError, watch
from headrace.launch.roles.options import PeerOptions
from headrace.launch.roles.role import Role

_DYING_S = 0.3
_LOOK_EVERY_S = 0.1


@logs.one_line_errors()
def relay(options: PeerOptions, *, shelf: Path, sender: ReportSender, port: int) -> int:
    """Relays until SIGTERM. It outlives the run: its node knows when all samplers are done. `port`:
    where the node serves metrics."""
    key = keyring.from_file(options.key, "actor")
    node = os.getppid()

    async def main() -> int:
        status = runtime.OK
        laid = WeightShelf(shelf)
        laid.reserve(0)  # so that samplers see somebody attend to it
        with Role("relay", name=options.name) as role:
            end = RelayEnd(
                options.broker,
                name=options.name,
                inc=role.inc,
                shelf=laid,
                context=role.context,
                key=key,
                port=port,
            )
            end.link.reports = logs.reports()
            try:
                await _relay(end, sender, node, options.brokers)
            except* BrokerGoneError as gone:
                logging.getLogger(__name__).warning("%s", gone.exceptions[0])
                status = ANEW
            finally:
                laid.close()
                if _orphaned(node):  # it was killed, and leaves this to us
                    shutil.rmtree(shelf.parent, ignore_errors=True)
        return status

    runtime.collect_rarely()
    return runtime.run_async(main)


async def _relay(end: RelayEnd, sender: ReportSender, node: int, brokers: str) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(watch(end.link, brokers), name="gone")
        group.create_task(end.serve(), name="link")
        group.create_task(sender.keep_sending(functools.partial(_figures, end)), name="tell")
        try:
            await asyncio.Event().wait()
        finally:
            # Samplers wait for acknowledgements, also when their node is dead.
            while end.serves_somebody() and _orphaned(node):  # noqa: ASYNC110
                await asyncio.sleep(_LOOK_EVERY_S)
            end.leave("stopped")  # while there is a link


def _figures(end: RelayEnd) -> ProcessFigures:
    """Returns what it reports to its node."""
    stats = {
        "version": float(end.shelf.version),
        "bytes": float(end.nbytes),
        "fetches": float(end.fetches),
    }
    return ProcessFigures(os.getpid(), end.link.welcome is not None, False, 0.0, stats)


def _orphaned(node: int) -> bool:
    """Says whether the node is dead. The signal of its death may come while its last threads are
    still dying, so it waits a moment."""
    until = time.monotonic() + _DYING_S
    while os.getppid() == node and time.monotonic() < until:
        time.sleep(0.005)
    return os.getppid() != node
