"""A headless Chromium, spoken to through a pipe: the protocol of its developer tools is JSON lines
that end with a zero byte."""

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.needs import missing

LONG_S = 60.0
# Made for this many pixels; the heights are those of whole pages.
WIDE, NARROW = 1280, 390


class Browser:
    """One page in it."""

    def __init__(self, folder: Path) -> None:
        there, self._tell = os.pipe()
        self._hear, here = os.pipe()

        def ends() -> None:  # it reads from 3 and writes to 4
            first, second = os.dup(there), os.dup(here)
            os.dup2(first, 3)
            os.dup2(second, 4)

        self._popen = subprocess.Popen(
            [
                "chromium",
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--no-first-run",
                "--remote-debugging-pipe",
                "--hide-scrollbars",
                f"--user-data-dir={folder}",
                "about:blank",
            ],
            preexec_fn=ends,
            close_fds=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": str(folder), "LANG": "C.UTF-8"},
        )
        os.close(there)
        os.close(here)
        self._rest = b""
        self._count = 0
        self._session = ""
        self.complaints: list[str] = []  # what the console was told, and what was thrown
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        self._count += 1
        said = {"id": self._count, "method": method, "params": params}
        if self._session:
            said["sessionId"] = self._session
        os.write(self._tell, json.dumps(said).encode() + b"\0")
        while True:
            heard = self._next()
            if heard.get("id") == self._count:
                assert "error" not in heard, f"{method}: {heard['error']}"
                return heard["result"]
            self._note(heard)

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + LONG_S
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._hear], [], [], deadline - time.monotonic())
            assert ready, "the browser says nothing"
            more = os.read(self._hear, 1 << 20)
            assert more, "the browser is gone"
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        return found

    def _note(self, heard: dict[str, Any]) -> None:
        params = heard.get("params", {})
        match heard.get("method"):
            case "Runtime.exceptionThrown" | "Runtime.consoleAPICalled":
                self.complaints.append(json.dumps(params)[:1000])
            case "Log.entryAdded":
                self.complaints.append(f"{params['entry']['level']}: {params['entry']['text']}")

    def see(self, *, width: int = WIDE, height: int = 900, dark: bool = False) -> None:
        """The window, and what its user prefers."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        wishes = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=wishes)

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def get(self, script: str) -> Any:
        """What it is worth in the page."""
        told = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def until(self, script: str, *, timeout_s: float = LONG_S) -> Any:
        deadline = time.monotonic() + timeout_s
        while not (found := self.get(script)):
            assert time.monotonic() < deadline, f"{script}\n{self.get('document.body.innerText')}"
            time.sleep(0.05)
        return found

    def figures(self) -> dict[str, str]:
        """Every figure of the page that has a name."""
        found: dict[str, str] = self.get(
            "Object.fromEntries([...document.querySelectorAll('[data-key]')]"
            ".map((one) => [one.dataset.key, one.textContent]))"
        )
        return found

    def picture(self) -> bytes:
        """The whole page, as PNG."""
        told = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        return base64.b64decode(told["data"])

    def close(self) -> None:
        self._popen.terminate()
        self._popen.wait(LONG_S)
        os.close(self._tell)
        os.close(self._hear)


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    if shutil.which("chromium") is None:
        missing("no chromium: install the Debian package chromium")
    folder = Path(tempfile.mkdtemp(prefix="hr-browser-"))
    made = Browser(folder)
    try:
        yield made
    finally:
        made.close()
        shutil.rmtree(folder, ignore_errors=True)
