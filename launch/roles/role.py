"""The process of a role: what it opens at its start and closes at its end."""

import contextlib
from collections.abc import Callable
from pathlib import Path

import zmq

from headrace.broker.journal.journal import Journal
from headrace.broker.peers.evaluator import EvaluatorEnd
from headrace.broker.peers.sampler import SamplerEnd
from headrace.launch.process import logs, runtime
from headrace.launch.process.sd_notify import Watchdog, WatchdogReading
from headrace.launch.roles.options import PeerOptions
from headrace.launch.web import http
from headrace.launch.writing import writing


class Role(contextlib.ExitStack):
    """Holds what the process of every role works with; closes it at the end of a `with`."""

    def __init__(self, kind: str, *, name: str = "", run: str = "") -> None:
        super().__init__()
        self._kind = kind
        self.inc = runtime.incarnation()  # of this start
        logs.set_identity(run=run, inc=self.inc, name=name)
        self.registry = http.registry(kind)  # its metrics
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.callback(self.context.destroy, linger=500)
        self.watchdog: Watchdog | None = None  # which also answers for it at /livez

    def watch(self, read: Callable[[], WatchdogReading]) -> Watchdog:
        """Returns its watchdog."""
        self.watchdog = Watchdog(read)
        return self.watchdog

    def stuck(self) -> str:
        """Returns for how long it has not got on; "" = it does, or has not begun."""
        return self.watchdog.stuck() if self.watchdog is not None else ""

    def open_journal(self, folder: Path | None, *, trace_every: int = 0) -> Journal:
        """Opens its journal in the folder that the user named; None = it writes nothing."""
        with writing(f"a ledger into {folder}", "choose another with --ledger"):
            journal = Journal(folder, f"{self._kind}-{self.inc}.log")
        self.callback(journal.close)
        journal.trace(trace_every)
        return journal

    def attach(self, end: SamplerEnd | EvaluatorEnd, options: PeerOptions) -> None:
        """Serves a peer's metrics, and sends its errors to the broker."""
        link = end.link
        end.port = http.serve_metrics(
            self.registry,
            *options.metrics,
            broker=options.broker,
            healthy=lambda: "" if link.welcome else "no broker has welcomed it",
            stuck=self.stuck,
        )
        link.reports = logs.reports()
