"""Puts a node's act process together. It needs no broker: samplers tell it their network, and the
relay's weights lie in shared memory."""

import os
import time
from pathlib import Path
from typing import Final

import torch

from headrace.actors.acting.central.server import ActServer
from headrace.launch.process import logs, runtime
from headrace.launch.process.node_reports import ProcessFigures, ReportSender

_LOOK_EVERY_S: Final = 0.1  # for a request to stop
_REPORT_EVERY_S: Final = 1.0


@logs.one_line_errors()
def act(*, folder: Path, sender: ReportSender) -> int:
    """Acts for the samplers of this machine until SIGTERM. `folder`: where relays put
    weights."""
    asked = runtime.StopRequested()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    # A GPU's calls only wait.
    threads = 1 if device == "cuda" else runtime.cores()
    server = ActServer(folder, device=device, threads=threads)
    due = time.monotonic()
    try:
        while not asked:
            server.serve(_LOOK_EVERY_S)
            if time.monotonic() >= due:
                due = time.monotonic() + _REPORT_EVERY_S
                sender.send(_figures(server))
    finally:
        server.close()
    return runtime.OK


def _figures(server: ActServer) -> ProcessFigures:
    """Returns what it reports to its node."""
    stats = {
        "act_rows": float(server.rows),
        "act_calls": float(server.calls),
        "act_seconds": server.seconds,
    }
    return ProcessFigures(os.getpid(), False, False, 0.0, stats)
