"""Formats a log record as a line. Pure.

A record may bring its traceback as text, `extra={"traceback": ...}`: that of an environment comes
from another process, and is not an exception here.
"""

import datetime
import json
import logging
import time
import traceback
from dataclasses import dataclass
from typing import Final

# Docker and Kubernetes cut lines at 16 KiB, journald at 48: a cut line is not JSON any more.
MOST_BYTES: Final = 16_000
# Characters of the text and of the traceback, tried in turn. One takes 12 bytes at most ("\ud83d
# \udc0e"), so the last fits: 2 * 500 * 12, and 3 names * 64 * 12.
_ROOMS: Final = (MOST_BYTES, 6_000, 3_000, 1_500, 500)
_MOST_NAME: Final = 64
_encode: Final = json.JSONEncoder(check_circular=False).encode


@dataclass(slots=True)
class Identity:
    """Holds the identity that stands in a process's lines; "" = not known yet."""

    role: str = ""
    run: str = ""
    inc: str = ""
    name: str = ""


def for_people(record: logging.LogRecord, identity: Identity) -> str:
    """Returns a record as text, its traceback on lines of its own."""
    at = time.strftime("%H:%M:%S", time.localtime(record.created))
    error = _traceback(record)
    line = f"{at} {identity.role} {record.levelname} {text_of(record)}"
    return f"{line}\n{error}" if error else line


def for_machines(record: logging.LogRecord, identity: Identity) -> str:
    """Returns a record as one JSON object on one physical line, whatever is in the text: in ASCII
    even U+2028 cannot break it."""
    at = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
    fields = {
        "t": at.isoformat(timespec="milliseconds"),
        "level": record.levelname.lower(),
        "role": identity.role,
        "run": identity.run[:_MOST_NAME],
        "inc": identity.inc,
        "name": identity.name[:_MOST_NAME],
        "logger": record.name[:_MOST_NAME],
        "text": text_of(record),
    }
    if error := _traceback(record):
        fields["error"] = error
    for room in _ROOMS:
        line = _encode({name: _plain(_shortened(value, room)) for name, value in fields.items()})
        if len(line) <= MOST_BYTES:
            break
    return line


def text_of(record: logging.LogRecord) -> str:
    """Returns a record's text, also of a call whose arguments do not fit it."""
    try:
        return record.getMessage()
    except Exception as error:  # noqa: BLE001 - whatever the arguments' own code raises
        kind = type(error).__name__
        return f"{record.pathname}:{record.lineno}: this log call fails with {kind}; mend it"


def summary(record: logging.LogRecord) -> str:
    """Returns a record's text, with the last line of its exception where the text does not say
    it."""
    text = text_of(record)
    kind, error, _ = record.exc_info or (None, None, None)
    if kind is None or error is None:
        return text
    words = last_line(kind, error)
    return text if words in text else f"{text}: {words}"


def last_line(kind: type[BaseException], error: BaseException) -> str:
    """Returns the last line of a traceback."""
    return traceback.format_exception_only(kind, error)[-1].strip()


def _traceback(record: logging.LogRecord) -> str:
    parts = [getattr(record, "traceback", "")]
    if record.exc_info and record.exc_info[0] is not None:
        parts += traceback.format_exception(*record.exc_info)
    if record.stack_info:
        parts.append(record.stack_info)
    return "".join(parts).rstrip("\n")


def _shortened(text: str, room: int) -> str:
    """Returns the beginning and the end of a text: a traceback says at its end what went wrong."""
    gone = len(text) - room
    if gone <= 0:
        return text
    half = room // 2
    return f"{text[:half]} [{gone} characters are left out] {text[-half:]}"


def _plain(text: str) -> str:
    """Replaces half characters (of a file name that is not UTF-8), which most JSON readers
    refuse."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
