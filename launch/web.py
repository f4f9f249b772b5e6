"""The small HTTP server of every process, on a thread: /metrics, /healthz, and what a role adds."""

import logging
import platform
import sys
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, Info, PlatformCollector, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from broker.loopback import is_loopback
from broker.release import release

log = logging.getLogger(__name__)

# Prometheus, a few pages that are open, and who looks by hand.
_MOST_AT_ONCE = 32

# Content type and body; called in a thread of the server.
Page = Callable[[], tuple[str, bytes]]


class PortError(ValueError):
    """The metrics port cannot be had; one line."""


def registry(role: str) -> CollectorRegistry:
    """A process's metrics, with what it is, its memory, CPU and descriptors."""
    made = CollectorRegistry()
    ProcessCollector(registry=made)
    PlatformCollector(registry=made)
    build = Info("headrace_build", "What runs here", registry=made)
    build.info({"role": role, "version": release(), "python": platform.python_version()})
    return made


def says_run(metrics: CollectorRegistry, *, run: str, algorithm: str, env: str) -> None:
    """Once the run is known."""
    known = Info("headrace_run", "The run that it works for", registry=metrics)
    known.info({"run": run, "algorithm": algorithm, "env": env})


def told(host: str, port: int | None, broker: str) -> int:
    """The port that the broker may give to Prometheus; 0 = nobody else could reach it."""
    local = broker.startswith("ipc:") or is_loopback(urlsplit(broker).hostname or "")
    return port or 0 if local or not is_loopback(host) else 0


def serve(
    metrics: CollectorRegistry,
    *,
    host: str,
    port: int | None,
    healthy: Callable[[], str],
    pages: Mapping[str, Page] | None = None,
    what: str = "metrics",
    options: tuple[str, str] = ("--metrics-host", "--metrics-port"),
) -> int | None:
    """Port 0 takes a free one, None serves nothing. `healthy` returns "" or what is wrong; `pages`
    are further paths; `what` is served, and these options say where. Returns the port."""
    if port is None:
        return None
    if not is_loopback(host):
        log.warning(
            "%s at %s: open to whoever reaches it; keep it behind a firewall, or leave"
            " %s at 127.0.0.1", what, host, options[0],
        )  # fmt: skip

    def health() -> tuple[int, str, bytes]:
        wrong = healthy()
        return 503 if wrong else 200, "text/plain", (wrong or "ok").encode() + b"\n"

    def answer(path: str) -> tuple[int, str, bytes]:
        if path == "/metrics":
            return 200, CONTENT_TYPE_LATEST, generate_latest(metrics)
        if path == "/healthz":
            return health()
        page = (pages or {}).get(path)
        if page is None:
            known = " ".join(("/metrics", "/healthz", *(pages or {})))
            return 404, "text/plain", f"there are: {known}\n".encode()
        return 200, *page()

    try:
        server = _Server((host, port), _handler(answer))
    except (OSError, OverflowError) as error:
        raise PortError(
            f"cannot serve {what} at {host}:{port}: {getattr(error, 'strerror', None) or error};"
            f" choose another with {options[1]}, 0 takes a free one"
        ) from error
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return int(server.server_address[1])


class _Server(ThreadingHTTPServer):
    """A thread for each connection, and so many connections; one more is closed at once."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._room = threading.BoundedSemaphore(_MOST_AT_ONCE)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # the system gives no more threads
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who leaves before the answer, as a closed window does, is no fault of ours."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def _handler(answer: Callable[[str], tuple[int, str, bytes]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 30.0  # one that says nothing does not keep its thread

        def do_GET(self) -> None:  # the standard library's name
            status, kind, body = answer(self.path.partition("?")[0])
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Scrapes are not events."""

    return Handler
