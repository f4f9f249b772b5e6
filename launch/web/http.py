"""The HTTP pages that every process serves: /metrics, /healthz, /livez, and what a role adds."""

import ipaddress
import logging
import platform
import socket
from collections.abc import Callable, Collection, Mapping
from typing import Final
from urllib.parse import urlsplit

from prometheus_client import (
    CollectorRegistry,
    Info,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from headrace.broker.errors import UserError
from headrace.broker.release import release
from headrace.broker.transport.endpoints import is_loopback
from headrace.launch.web import runbook
from headrace.launch.web.http_server import Answer, Request, WebServer

log = logging.getLogger(__name__)

# Paths that hold numbers and addresses, and that no person opens.
_FOR_MACHINES: Final = ("/metrics", "/healthz", "/livez", "/sd")
# Content type and body; called in a thread of the server.
Page = Callable[[], tuple[str, bytes]]


class PortError(UserError, ValueError):
    """Says, in one line, that the metrics port cannot be used."""


def registry(role: str) -> CollectorRegistry:
    """Returns a process's metrics: its role and version, memory, CPU and descriptors."""
    disable_created_metrics()  # type: ignore[no-untyped-call]  # else each counter has another
    made = CollectorRegistry()
    ProcessCollector(registry=made)
    PlatformCollector(registry=made)
    build = Info("headrace_build", "What runs here", registry=made)
    build.info({"role": role, "version": release(), "python": platform.python_version()})
    return made


def set_run_info(metrics: CollectorRegistry, *, run: str, algorithm: str, env: str) -> None:
    """Adds the run to the metrics, once it is known."""
    known = Info("headrace_run", "The run that it works for", registry=metrics)
    known.info({"run": run, "algorithm": algorithm, "env": env})


def serve_metrics(
    metrics: CollectorRegistry,
    host: str,
    port: int | None,
    *,
    broker: str,
    healthy: Callable[[], str],
    stuck: Callable[[], str],
) -> int:
    """Serves the metrics of a process that works for a broker; returns the port that this one may
    give to Prometheus, 0 = none, or no other machine could reach it."""
    port = serve(metrics, host=host, port=port, healthy=healthy, stuck=stuck)
    if port is not None:
        log.info("metrics at port %d", port)
    local = broker.startswith("ipc:") or is_loopback(urlsplit(broker).hostname or "")
    return port or 0 if local or not is_loopback(host) else 0


def serve(
    metrics: CollectorRegistry,
    *,
    host: str,
    port: int | None,
    healthy: Callable[[], str],
    stuck: Callable[[], str] = lambda: "",
    pages: Mapping[str, Page] | None = None,
    what: str = "metrics",
    options: tuple[str, str] = ("--metrics-host", "--metrics-port"),
    names: Collection[str] = (),
) -> int | None:
    """Serves metrics and pages; returns the port. Port 0 takes a free one, None serves nothing.
    `healthy` returns "" or what keeps it from its work, `stuck` "" or that it hangs, both without
    waiting; `pages` are further paths; `what` is served, for messages, and `options` say where;
    `names` are further names by which a browser reaches us."""
    if port is None:
        return None
    if not is_loopback(host):
        log.warning(
            "%s at %s: open to whoever reaches it; keep it behind a firewall, or leave"
            " %s at 127.0.0.1",
            what,
            host,
            options[0],
        )

    local, known = is_loopback(host), _names(host, names)

    def answer(request: Request) -> Answer | Callable[[], Answer]:
        path = request.path
        # Prometheus and load balancers call us as they like, where they reach us from elsewhere.
        if (local or path not in _FOR_MACHINES) and not _is_ours(request.host, known):
            return _misdirected(request.host)
        if path in ("/healthz", "/livez"):  # waits for no thread
            wrong = healthy() if path == "/healthz" else stuck()
            return Answer(503 if wrong else 200, "text/plain", (wrong or "ok").encode() + b"\n")
        if path == "/metrics":
            return lambda: Answer(200, CONTENT_TYPE_LATEST, generate_latest(metrics))
        if path == "/runbook":
            return lambda: Answer(200, *runbook.page())
        page = (pages or {}).get(path)
        if page is None:
            there = " ".join(("/metrics", "/healthz", "/livez", "/runbook", *(pages or {})))
            return Answer(404, "text/plain", f"there are: {there}\n".encode())
        return lambda: Answer(200, *page())

    try:
        server = WebServer(host, port, answer)
    except (OSError, OverflowError, TypeError, UnicodeError) as error:  # a host that is not a name
        raise PortError(
            f"cannot serve {what} at {host}:{port}: {getattr(error, 'strerror', None) or error};"
            f" choose another with {options[1]}, 0 takes a free one"
        ) from error
    server.start()
    return server.port


def _names(bound: str, more: Collection[str]) -> set[str]:
    """Returns the names, beside addresses, by which a request may call us."""
    return {name.lower().rstrip(".") for name in ("localhost", socket.gethostname(), bound, *more)}


def _is_ours(host: str, names: Collection[str]) -> bool:
    """Says whether a Host names us. A foreign page whose name was made to lead here (DNS rebinding)
    still says its own name; an address cannot be made to lead anywhere."""
    if not host:
        return True  # no browser leaves it out
    try:
        name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
        return name in names or bool(ipaddress.ip_address(name))
    except ValueError:
        return False


def _misdirected(host: str) -> Answer:
    words = f"not for {host[:200]!r}: say --page-name NAME if it is to be reached by that name\n"
    return Answer(421, "text/plain", words.encode(errors="replace"))
