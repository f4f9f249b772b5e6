"""Makes docs/pictures/page.png: the broker's page while a short run trains. Needs chromium.

python -m docs.picture [SECONDS]    default: 15 s after the first version
"""

import base64
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from tests import ports
from tests.launch.monitor.browser import Browser

TO = Path(__file__).parent / "pictures" / "page.png"
WIDTH, HEIGHT = 1180, 790
# Solves within seconds, and goes on after it.
RUN = ("--run", "cartpole", "--set", "stop.return=none", "--set", "stop.steps=none")


def main(seconds: float) -> int:
    """Starts every role, waits, and takes the picture."""
    broker, page = f"tcp://127.0.0.1:{ports.free()}", ports.free()
    with tempfile.TemporaryDirectory() as folder:
        started: list[subprocess.Popen[bytes]] = []

        def start(*words: str) -> None:
            command = (sys.executable, "-m", "headrace.launch.cli", *words)
            started.append(subprocess.Popen(command, cwd=folder))

        try:
            start("broker", *RUN, "--set", f"broker.bind={broker}", "--metrics-port", f"{page}")
            start("learner", *RUN, "--broker", broker, "--out", "run")
            start("evaluate", "--broker", broker, "--out", "run", "--every-s", "5")
            for name in ("left", "right"):
                start("actor", "--broker", broker, "--name", name)
            address = f"http://127.0.0.1:{page}"
            _until_trained(f"{address}/status.json")
            _take(address, seconds, Path(folder) / "browser")
        finally:
            for process in reversed(started):
                process.terminate()
            for process in started:
                process.wait()
    return 0


def _until_trained(address: str) -> None:
    """Waits for a version of the weights."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        time.sleep(0.5)
        try:
            with urllib.request.urlopen(address, timeout=5) as answer:
                status: dict[str, Any] = json.load(answer)
        except OSError:
            continue
        if status.get("version", 0) > 0:
            return
    raise TimeoutError(f"no version of the weights within 120 s: {address}")


def _take(address: str, seconds: float, folder: Path) -> None:
    """Opens the page and writes its picture after so many seconds."""
    browser = Browser(folder)
    try:
        browser.see(width=WIDTH, height=HEIGHT)
        browser.open(address)
        time.sleep(seconds)
        clip = {"x": 0, "y": 0, "width": WIDTH, "height": HEIGHT, "scale": 1}
        taken = browser.call("Page.captureScreenshot", format="png", clip=clip)
        TO.write_bytes(base64.b64decode(taken["data"]))
    finally:
        browser.close()


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 15.0))
