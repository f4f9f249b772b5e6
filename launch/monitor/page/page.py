"""The web page of a running run: one HTML file with its script and style inside.

It asks for /status.json every second while it is open; with no page open nothing is done.
"""

import base64
import hashlib
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from headrace.launch.web.http import Page

Status = Callable[[], Mapping[str, Any]]

_FOLDER: Final = Path(__file__).parent
# In the order of their dependencies.
_SCRIPTS: Final = ("format", "totals", "draw", "pipeline", "curve", "tables", "page")
# The status is built at most this often, however many pages are open.
_EVERY_S: Final = 0.25


def pages(status: Status) -> dict[str, Page]:
    """Returns what an HTTP server adds to show the page; one of its threads calls `status`."""
    page, fresh = document().encode(), CachedStatus(status)
    return {
        "/": lambda: ("text/html; charset=utf-8", page),
        "/status.json": lambda: ("application/json", fresh()),
    }


def document() -> str:
    """Builds the whole page. Its policy allows this script and this style, and nothing else."""
    script = "\n".join(_read(f"{name}.js") for name in _SCRIPTS)
    script, style = f'"use strict";\n{script}', _read("page.css")
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)};"
        " connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'"
    )
    page = _read("page.html")
    for name, text in (("policy", policy), ("style", style), ("script", script)):
        page = page.replace(f"{{{name}}}", text, 1)
    return page


class CachedStatus:
    """Caches the status as JSON for a quarter second, however many readers ask."""

    def __init__(self, status: Status) -> None:
        self._status = status
        self._lock = threading.Lock()
        self._made = b""
        self._until = float("-inf")  # when the cached status expires, by time.monotonic

    def __call__(self) -> bytes:
        with self._lock:
            if time.monotonic() >= self._until:
                self._made = msgspec.json.encode(self._status())  # NaN becomes null
                self._until = time.monotonic() + _EVERY_S
            return self._made


def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
