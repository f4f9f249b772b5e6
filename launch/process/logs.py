"""A process's log: one line per event on standard error, for people or for machines.

    human  09:41:07 actor WARNING the broker at tcp://10.0.0.1:5755 fell silent; connecting again
    json   {"t": "2026-11-21T09:41:07.123+00:00", "level": "warning", "role": "actor",
            "run": "breakout", "inc": "0f3a52c9d1b87e64", "name": "node7-311",
            "logger": "headrace.broker.transport.link",
            "text": "the broker at ... fell silent; connecting again"}

`auto` is human on a terminal and JSON elsewhere. In JSON "error" holds a traceback, where there is
one; run, inc and name are "" until they are known. `t` is in UTC with milliseconds: a person can
read it, lines of machines in several time zones sort as text, and every collector knows the format.
What Python itself would print (warnings, uncaught exceptions) is a JSON line too. What C libraries
and environments print is theirs.

Nothing in here ends a role: lines that cannot be written are counted, and the count is logged once
that is possible.
"""

import contextlib
import dataclasses
import functools
import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, ParamSpec

from headrace.actors.users_code import traceback_of
from headrace.broker.errors import ExpectedError, UserError
from headrace.broker.peer_errors import UnreportedErrors
from headrace.launch.config.run_file import ConfigError
from headrace.launch.process import last_errors, log_lines, shown_tracebacks
from headrace.launch.process.log_lines import Identity

log = logging.getLogger(__name__)
P = ParamSpec("P")

AUTO, HUMAN, JSON = "auto", "human", "json"
FORMS = (AUTO, HUMAN, JSON)
VARIABLE = "HEADRACE_LOG"
# Loggers of the connection to the broker: their errors are not sent to the broker.
_NOT_SENT_TO_BROKER = (
    "headrace.broker.transport.link",
    "headrace.broker.security.handshake",
    "headrace.broker.transport.mailbox",
)

# As syslog counts them.
_PRIORITIES = {"DEBUG": 7, "INFO": 6, "WARNING": 4, "ERROR": 3, "CRITICAL": 2}

_identity = Identity()  # this process
_form = HUMAN


def chosen(given: str | None) -> str:
    """Returns human or json: by the option, else by HEADRACE_LOG, else by whether standard error is
    a terminal."""
    form = given or os.environ.get(VARIABLE) or AUTO
    if form not in FORMS:
        raise ConfigError(f"{VARIABLE}={form}: it must be one of {', '.join(FORMS)}")
    if form == AUTO:
        return HUMAN if sys.stderr is not None and sys.stderr.isatty() else JSON
    return form


def start(role: str, *, quiet: bool = False, form: str = HUMAN) -> None:
    """Starts this process's log, as `role`."""
    global _identity, _form
    _identity, _form = Identity(role), form
    _hold_descriptors()
    handler = ToStderr(_identity, json=form == JSON)
    logging.basicConfig(
        level=logging.WARNING if quiet else logging.INFO, handlers=[handler], force=True
    )
    last_errors.install(_identity)
    if form == JSON:
        _catch()


def form() -> str:
    """Returns how this process logs: human or json."""
    return _form


def set_identity(
    *, run: str | None = None, inc: int | None = None, name: str | None = None
) -> None:
    """Sets what is known of this process by now; it stands in every JSON line from here on."""
    if run is not None:
        _identity.run = run
    if inc is not None:
        _identity.inc = f"{inc:016x}"
    if name is not None:
        _identity.name = name


def swap_identity(other: Identity) -> Identity:
    """Sets all that is known of whoever logs from here on; returns what it was before."""
    before = dataclasses.replace(_identity)
    for one in dataclasses.fields(Identity):
        setattr(_identity, one.name, getattr(other, one.name))
    return before


def refuse(error: UserError) -> None:
    """Prints what is wrong with the user's input: one line, in the form of all others."""
    if _form == JSON:
        log_end(log, error)
    else:
        where = traceback_of(error)
        print(f"headrace: {error}" + f"\n{where}".rstrip(), file=sys.stderr)  # noqa: T201
    last_errors.refused(error)


def one_line_errors(*refusals: type[Exception]) -> Callable[[Callable[P, int]], Callable[P, int]]:
    """Makes a process's main log an expected error in one line, and return its exit status.
    `refusals`: further errors that say, from one of its tasks, what is wrong with the run."""
    kinds: tuple[type[BaseException], ...] = (ExpectedError, *refusals)

    def decorate(main: Callable[P, int]) -> Callable[P, int]:
        @functools.wraps(main)
        def guarded(*args: P.args, **options: P.kwargs) -> int:
            try:
                return main(*args, **options)
            except ExpectedError as error:
                return log_end(logging.getLogger(main.__module__), error)
            except BaseExceptionGroup as group:
                expected, other = group.split(kinds)
                if expected is None or other is not None:
                    raise
                return log_end(logging.getLogger(main.__module__), expected)

        return guarded

    return decorate


def log_end(log: logging.Logger, error: BaseException) -> int:
    """Logs, in one line, an expected error that ends a process; below it, if it was in code of the
    user's own, the place. Returns the exit status."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    line = " ".join(str(error).split()) or type(error).__name__
    log.error("%s", line, extra={"traceback": traceback_of(error)})
    return error.status if isinstance(error, ExpectedError) else UserError.status


def reports() -> UnreportedErrors:
    """Returns a collector that from now on gets this process's errors, for the broker. A process
    has one: the next call replaces it."""
    root = logging.getLogger()
    for handler in root.handlers[:]:
        if isinstance(handler, _ToReports):
            root.removeHandler(handler)
    collected = UnreportedErrors()
    root.addHandler(_ToReports(collected))
    return collected


def _is_journal(fd: int) -> bool:
    """Tells whether systemd's journal reads a descriptor: it takes a line's priority from its
    beginning."""
    stat = os.fstat(fd)
    return os.environ.get("JOURNAL_STREAM") == f"{stat.st_dev}:{stat.st_ino}"


class ToStderr(logging.Handler):
    """Writes each line at once and whole, and drops what cannot be written.

    It writes past Python's own buffer, where the file descriptor is known: only then we learn how
    much of a line a full disk took, and nothing stays behind to come out in the middle of a later
    one.
    """

    def __init__(self, identity: Identity, *, json: bool) -> None:
        super().__init__()
        self.lost = 0  # lines that could not be written
        self._identity = identity
        self._line = log_lines.for_machines if json else log_lines.for_people
        self._stream = sys.stderr
        self._encoding = getattr(self._stream, "encoding", None) or "utf-8"
        self._fd: int | None = None
        with contextlib.suppress(OSError, ValueError, AttributeError):
            self._fd = self._stream.fileno()
        self._to_journal = self._fd is not None and _is_journal(self._fd)
        self._missing = 0  # lines lost since the last line that told of it
        self._why = ""  # the error of the last lost line
        self._cut = False  # the last line was written in part only

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if self._missing:
                self._write(self._told(self._gap()))
                self._missing = 0
            self._write(self._told(record))
        except Exception as error:  # noqa: BLE001 - nobody is left to be told
            self.lost += 1
            self._missing += 1
            self._why = str(error)

    def _told(self, record: logging.LogRecord) -> str:
        line = self._line(shown_tracebacks.once(record), self._identity)
        return f"<{_PRIORITIES[record.levelname]}>{line}" if self._to_journal else line

    def _gap(self) -> logging.LogRecord:
        told = f"{self._missing} lines of this log could not be written: {self._why}"
        return logging.makeLogRecord({"name": __name__, "levelname": "WARNING", "msg": told})

    def _write(self, line: str) -> None:
        if self._fd is None:  # a stream without a descriptor: a test's, a notebook's
            self._stream.write(line + "\n")
            self._stream.flush()
            return
        rest = f"{line}\n".encode(self._encoding, "backslashreplace")
        if self._cut:
            rest = b"\n" + rest
        while rest:
            rest = rest[os.write(self._fd, rest) :]
            self._cut = bool(rest)


class _ToReports(logging.Handler):
    """Collects errors only, each as one line."""

    def __init__(self, reports: UnreportedErrors) -> None:
        super().__init__(logging.ERROR)
        self._reports = reports

    def emit(self, record: logging.LogRecord) -> None:
        if record.name not in _NOT_SENT_TO_BROKER:
            self._reports.add(log_lines.summary(record))


def _hold_descriptors() -> None:
    """Opens /dev/null at each standard descriptor that is closed: else the next file or socket
    would get its number, and with it what a C library prints."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


def _catch() -> None:
    """Logs what Python would print by itself as lines of this log. Exit statuses stay as they
    are."""
    logging.captureWarnings(True)
    sys.excepthook = _uncaught
    sys.unraisablehook = _unraisable
    threading.excepthook = _died


def _uncaught(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    log.critical("uncaught %s", log_lines.last_line(kind, error), exc_info=(kind, error, trace))


def _died(args: threading.ExceptHookArgs) -> None:
    if args.exc_type is SystemExit:  # a thread's way to end, for Python too
        return
    name = args.thread.name if args.thread is not None else "a thread"
    error = args.exc_value or args.exc_type()
    words = log_lines.last_line(args.exc_type, error)
    log.critical("%s died of %s", name, words, exc_info=(args.exc_type, error, args.exc_traceback))


def _unraisable(args: "sys.UnraisableHookArgs") -> None:
    error = args.exc_value or args.exc_type()
    where = getattr(args.object, "__qualname__", type(args.object).__name__)
    log.error(
        "ignored in %s: %s",
        where,
        log_lines.last_line(args.exc_type, error),
        exc_info=(args.exc_type, error, args.exc_traceback),
    )
