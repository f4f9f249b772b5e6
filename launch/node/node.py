"""`headrace node`: one machine's samplers, their relay, and their restarts.

    node --+-- forker             imported torch once; forks the others, which the node adopts
           +-- relay              the samplers' connection to the broker; each version, fetched
           |                      once, laid into shared memory; where several policies play, one
           |                      relay for each of their brokers
           +-- sampler 0, 1, ..   speak through the relay

This process has no torch and no connection to the broker: nothing that comes in by the network can
end it. It starts again what ended badly, for ever; it ends when all samplers say that the run is
over (0), when one, or the relay, says that the user's input is wrong (2), or when it is asked to
(0).
"""

import contextlib
import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from headrace.broker.transport import endpoints
from headrace.launch.config import allowed_code as allowing
from headrace.launch.config import keyring, run_file
from headrace.launch.node.forker import Settings
from headrace.launch.node.notice import Notice
from headrace.launch.node.processes import NodeProcesses
from headrace.launch.node.shared_folder import shared_folder
from headrace.launch.node.size import NodeSize
from headrace.launch.node.unique_name import unique_name
from headrace.launch.process import logs, runtime
from headrace.launch.process.node_reports import ReportReceiver
from headrace.launch.roles.gone_broker import begin_anew
from headrace.launch.roles.options import NOWHERE, PeerOptions
from headrace.launch.web import http

log = logging.getLogger(__name__)


@logs.one_line_errors()
def node(peers: Sequence[PeerOptions], *, samplers: int | Path | None, notice: Notice) -> int:
    """Runs the node; returns the exit status. `peers`: its samplers', one for each policy's broker;
    `samplers`: how many, or the file that says it; None = one for each core. `notice`: it drains
    and ends once this has come."""
    asked = runtime.StopRequested()
    size = NodeSize(samplers)
    options = peers[0]
    for peer in peers:
        endpoints.check(peer.broker)
    # Each process reads these; what is wrong is said once, now.
    keyring.from_file(options.key, "actor")
    allowing.allowed(options.allow)
    if not runtime.adopt_orphans():
        raise run_file.ConfigError("headrace node needs Linux; start samplers: headrace actor")
    with (
        unique_name(options.name, broker=options.broker) as name,
        shared_folder() as folder,
        contextlib.closing(_bind_receiver(folder / "told")) as receiver,
    ):
        settings = Settings(
            node=os.getpid(),
            peers=tuple(
                replace(
                    peer,
                    name=name,
                    ledger=peer.ledger and peer.ledger.absolute(),
                    key=peer.key and peer.key.absolute(),
                    metrics=NOWHERE,
                )
                for peer in peers
            ),
            shelves=tuple(folder / f"weights{number or ''}" for number in range(len(peers))),
            tell=folder / "told",
            form=logs.form(),
            quiet=log.getEffectiveLevel() >= logging.WARNING,
        )
        made = NodeProcesses(settings, size, receiver, asked, notice)
        port = http.serve_metrics(
            made.registry,
            *options.metrics,
            broker=options.broker,
            healthy=made.healthy,
            stuck=made.watch.stuck,
        )
        status = made.run(port)
    return begin_anew() if made.begins_anew and not asked else status


def _bind_receiver(path: Path) -> ReportReceiver:
    try:
        return ReportReceiver(path)
    except OSError as error:
        raise run_file.ConfigError(f"cannot make a socket at {path}: {error.strerror}") from error
