"""`headrace top`: a run as its broker sees it, in the terminal or as a page of its own."""

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
from headrace.broker.transport import endpoints
from headrace.launch.config import keyring, run_file
from headrace.launch.monitor import screens
from headrace.launch.monitor.page import page
from headrace.launch.monitor.rates import Rates
from headrace.launch.monitor.status_client import FromBroker, Watcher
from headrace.launch.process import http, logs, runtime

_ANSWERS_S = 5.0
_EVERY_S = 1.0
_ONCE_S = 2.0
# So long a signal may wait, too.
_TURN_S = 0.2
_LEAVES = (b"q", b"Q", b"\x03", b"")  # ctrl-C, and a terminal that is gone
# Without an answer for so long, it is said.
_SILENT_S = 3.0


def top(
    address: str, *, key: Path | None, port: int | None, host: str, names: Sequence[str] = ()
) -> int:
    """Until q or a signal; `port`: serve the page there instead."""
    try:
        watcher = Watcher(endpoints.check(address), keyring.from_file(key, ""))
    except endpoints.EndpointError as error:
        raise run_file.ConfigError(str(error)) from error
    with contextlib.closing(watcher):
        if port is not None:
            return _serve(watcher, address, host=host, port=port, names=names)
        asked = runtime.StopRequested()
        if not _answers(watcher, address, asked):
            return runtime.OK
        if not sys.stdout.isatty():
            return _once(watcher, asked)
        with _keys() as keys:
            return _live(watcher, asked, keys)


def _answers(watcher: Watcher, address: str, asked: runtime.StopRequested) -> bool:
    """False: asked to stop before. Nobody there, or nobody who wants us, is the user's to mend."""
    deadline = time.monotonic() + _ANSWERS_S
    while not asked and watcher.heard is None:
        if watcher.refused:
            raise run_file.ConfigError(f"{address}: {sanitise.words(watcher.refused, 1000)}")
        if time.monotonic() > deadline:
            raise run_file.ConfigError(
                f"no broker answers at {address} within {_ANSWERS_S:.0f} s: does one run there, and"
                f" does it want a --key? headrace doctor --broker {address} says more"
            )
        watcher.ask()
        watcher.wait(_TURN_S)
        watcher.look()
    return not asked


def _once(watcher: Watcher, asked: runtime.StopRequested) -> int:
    """A moment of it, for a file or a pipe."""
    rates, until = Rates(), time.monotonic() + _ONCE_S
    rates.see(watcher.status, watcher.heard or 0.0)
    _wait(watcher, asked, None, until=until)
    _hear(watcher, asked, None)
    rates.see(watcher.status, watcher.heard or 0.0)
    print("\n".join(screens.lines(watcher.status, rates)))  # noqa: T201
    return runtime.OK


def _live(watcher: Watcher, asked: runtime.StopRequested, keys: int | None) -> int:
    rates, news = Rates(), ""
    console = Console()
    # Refreshed by us: a thread of its own would draw while we wait.
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while not asked:
            began = time.monotonic()
            if _hear(watcher, asked, keys):
                break
            if rates.see(watcher.status, watcher.heard or 0.0):
                news = f"the broker restarted at {time.strftime('%H:%M:%S')}"
            drawn = screens.screen(
                watcher.status, rates, size=console.size, news=news, wrong=_wrong(watcher)
            )
            live.update(drawn, refresh=True)
            if _wait(watcher, asked, keys, until=began + _EVERY_S):
                break
    return runtime.OK


def _wrong(watcher: Watcher) -> str:
    silent = watcher.silent_s()
    if watcher.refused:
        return f"the broker refuses: {sanitise.words(watcher.refused)}"
    if silent < _SILENT_S:
        return ""
    since = time.strftime("%H:%M:%S", time.localtime(time.time() - silent))
    return f"the broker has not answered since {since} ({silent:.0f} s)"


def _hear(watcher: Watcher, asked: runtime.StopRequested, keys: int | None) -> bool:
    """Asks and waits for the answer, but no longer than until the next look; True = end."""
    before = watcher.heard
    watcher.ask()
    until = time.monotonic() + _EVERY_S
    return _wait(watcher, asked, keys, until=until, heard=lambda: watcher.heard != before)


def _wait(
    watcher: Watcher,
    asked: runtime.StopRequested,
    keys: int | None,
    *,
    until: float,
    heard: Callable[[], bool] = lambda: False,
) -> bool:
    """Takes what comes; True = somebody wants it to end."""
    files = [] if keys is None else [keys]
    while not asked and not heard() and (left := until - time.monotonic()) > 0:
        for typed in watcher.wait(min(left, _TURN_S), *files):
            if os.read(typed, 64)[:1] in _LEAVES:
                return True
        watcher.look()
    return bool(asked)


@contextlib.contextmanager
def _keys() -> Iterator[int | None]:
    """Single keys from the terminal; None = nobody can type."""
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


def _serve(watcher: Watcher, address: str, *, host: str, port: int, names: Sequence[str]) -> int:
    """The page, for who may not look at the broker's own; asks only while somebody looks."""
    stops = (signal.SIGTERM, signal.SIGINT)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, stops)  # its threads shall not take them
    try:
        _answers(watcher, address, runtime.StopRequested())
        logs.start("top")
        found = http.serve(
            http.registry("view"),
            host=host,
            port=port,
            healthy=lambda: "",
            what="the page",
            pages=page.pages(FromBroker(watcher)),
            options=("--host", "--web"),
            names=names,
        )
        shown = f"[{host}]" if ":" in host else host
        print(f"http://{shown}:{found}/", flush=True)  # noqa: T201
        signal.sigwait(stops)
        return runtime.OK
    except http.PortError as error:
        raise run_file.ConfigError(str(error)) from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
