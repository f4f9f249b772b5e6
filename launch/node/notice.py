"""Says whether this machine is to be taken away: by a file, or by a cloud's web server."""

import http.client
import logging
import threading
import urllib.request
from pathlib import Path
from typing import Final

from headrace.launch.config import run_file

log = logging.getLogger(__name__)

_EVERY_S: Final = 2.0
_PATIENCE_S: Final = 2.0  # for an answer
_STAYS: Final = ("", "FALSE", "NONE")  # the body of an answer while there is no notice


class Notice:
    """Watches for the notice until closed; a URL is asked by a thread, as its answer may take
    long."""

    def __init__(self, given: Path | str | None, header: tuple[str, str] | None) -> None:
        self._file = given if isinstance(given, Path) else None
        self._told = ""  # the web server's notice, in words
        self._closed = threading.Event()
        if isinstance(given, str):
            threading.Thread(target=self._ask, args=(given, header), daemon=True).start()
        elif header is not None:
            raise run_file.ConfigError("--notice-header is for a --notice that is a URL")

    def has_come(self) -> bool:
        """Says whether this machine goes, and logs why."""
        if self._file is not None and self._file.exists():
            self._told = f"{self._file} is there"
        if self._told:
            log.info("%s: this machine goes", self._told)
        return bool(self._told)

    def close(self) -> None:
        """Asks no more, and says nothing to an answer that is still to come."""
        self._closed.set()

    def _ask(self, url: str, header: tuple[str, str] | None) -> None:
        request = urllib.request.Request(url, headers=dict([header] if header else []))
        # Such a server is this machine's own: no proxy reaches it.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        before = ""
        while not self._told and not self._closed.is_set():
            try:
                with opener.open(request, timeout=_PATIENCE_S) as answer:
                    said = answer.read(200).decode(errors="replace").strip()
                    if answer.status == http.client.OK and said.upper() not in _STAYS:
                        self._told = f"{url} says {said!r}"
            except (OSError, http.client.HTTPException) as error:
                said = str(error)  # such as 404, which is how some say that there is none
            if said != before and not self._told and not self._closed.is_set():
                log.info("%s says %r: this machine stays", url, said)
            before = said
            self._closed.wait(_EVERY_S)
