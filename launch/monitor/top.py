"""`headrace top`: a run's status from its broker, in the terminal or as a web page of its own."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.live import Live

from headrace.broker import sanitise
from headrace.launch.config import keyring
from headrace.launch.monitor import local_brokers, screens, status_client
from headrace.launch.monitor.page import page
from headrace.launch.monitor.rates import Rates
from headrace.launch.monitor.status_client import PolledStatus, StatusClient
from headrace.launch.process import logs, runtime
from headrace.launch.web import http

_EVERY_S = 1.0
_ONCE_S = 2.0
# How late a signal may be noticed, too.
_TURN_S = 0.2
_QUIT_KEYS = (b"q", b"Q", b"\x03", b"")  # ctrl-C, and a terminal that is gone
# After this time without an answer the screen says so.
_SILENT_S = 3.0


def top(
    address: str | None, *, key: Path | None, port: int | None, host: str, names: Sequence[str] = ()
) -> int:
    """Shows the run until q or a signal; `address`: None = the only one of this machine; `port`:
    serve the page there instead."""
    address = address or local_brokers.only_one()
    client = StatusClient(address, keyring.from_file(key, ""))
    with contextlib.closing(client):
        if port is not None:
            return _serve(client, address, host=host, port=port, names=names)
        asked = runtime.StopRequested()
        if not status_client.wait_for_first(client, address, asked):
            return runtime.OK
        if not sys.stdout.isatty():
            return _once(client, asked)
        with _keys() as keys:
            return _live(client, asked, keys)


def _once(client: StatusClient, asked: runtime.StopRequested) -> int:
    """Prints one status with rates over 2 seconds, for a file or a pipe."""
    rates, until = Rates(), time.monotonic() + _ONCE_S
    rates.update(client.status)
    _wait(client, asked, None, until=until)
    _ask_and_wait(client, asked, None)
    rates.update(client.status)
    print("\n".join(screens.plain_lines(client.status, rates)))  # noqa: T201
    return runtime.OK


def _live(client: StatusClient, asked: runtime.StopRequested, keys: int | None) -> int:
    rates, news = Rates(), ""
    console = Console()
    # We refresh it: a refresh thread would draw while we wait.
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while not asked:
            began = time.monotonic()
            if _ask_and_wait(client, asked, keys):
                break
            if rates.update(client.status):
                news = f"the broker restarted at {time.strftime('%H:%M:%S')}"
            drawn = screens.screen(
                client.status, rates, size=console.size, news=news, wrong=_wrong(client)
            )
            live.update(drawn, refresh=True)
            if _wait(client, asked, keys, until=began + _EVERY_S):
                break
    return runtime.OK


def _wrong(client: StatusClient) -> str:
    silent = client.silent_s()
    if client.refused:
        return f"the broker refuses: {sanitise.words(client.refused)}"
    if silent < _SILENT_S:
        return ""
    since = time.strftime("%H:%M:%S", time.localtime(time.time() - silent))
    return f"the broker has not answered since {since} ({silent:.0f} s)"


def _ask_and_wait(client: StatusClient, asked: runtime.StopRequested, keys: int | None) -> bool:
    """Asks, and waits for the answer until the next refresh at the latest; returns True to end."""
    before = client.last_status_at
    client.ask()
    until = time.monotonic() + _EVERY_S
    return _wait(client, asked, keys, until=until, heard=lambda: client.last_status_at != before)


def _wait(
    client: StatusClient,
    asked: runtime.StopRequested,
    keys: int | None,
    *,
    until: float,
    heard: Callable[[], bool] = lambda: False,
) -> bool:
    """Receives until `until` or `heard`; returns True if a key or a signal asks to end."""
    files = [] if keys is None else [keys]
    while not asked and not heard() and (left := until - time.monotonic()) > 0:
        for typed in client.wait(min(left, _TURN_S), *files):
            if os.read(typed, 64)[:1] in _QUIT_KEYS:
                return True
        client.receive()
    return bool(asked)


@contextlib.contextmanager
def _keys() -> Iterator[int | None]:
    """Yields the terminal in single-key mode; None = standard input is not a terminal."""
    if not sys.stdin.isatty():
        yield None
        return
    import termios  # not on every system
    import tty

    keys = sys.stdin.fileno()
    before = termios.tcgetattr(keys)
    tty.setcbreak(keys)
    try:
        yield keys
    finally:
        termios.tcsetattr(keys, termios.TCSADRAIN, before)


def _serve(
    client: StatusClient, address: str, *, host: str, port: int, names: Sequence[str]
) -> int:
    """Serves the page for users who cannot reach the broker's own; asks only while the page is
    open."""
    stops = (signal.SIGTERM, signal.SIGINT)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, stops)  # its threads must not receive them
    try:
        status_client.wait_for_first(client, address, runtime.StopRequested())
        logs.start("top")
        found = http.serve(
            http.registry("view"),
            host=host,
            port=port,
            healthy=lambda: "",
            what="the page",
            pages=page.pages(PolledStatus(client)),
            options=("--host", "--web"),
            names=names,
        )
        shown = f"[{host}]" if ":" in host else host
        print(f"http://{shown}:{found}/", flush=True)  # noqa: T201
        signal.sigwait(stops)
        return runtime.OK
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
