"""The dashboards as a person sees them: Grafana's own components draw them in a browser.

Its packages are half a gigabyte, so this is a part of `make soak`; test_types.py and test_live.py
check the JSON and the data in every `make test`. HEADRACE_PICTURES names a folder that keeps what
was seen.
"""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from grafana.generate.__main__ import GRAFANA
from grafana.generate.boards import BOARDS
from tests.grafana.conftest import Live
from tests.grafana.live_prometheus import Prometheus
from tests.grafana.test_types import install
from tests.launch.monitor.browser import browser
from tests.system.conftest import until
from tests.system.harness.figures import LONG

PACKAGES = (
    "@grafana/data@11.6.0",
    "@grafana/schema@11.6.0",
    "@grafana/ui@11.6.0",
    "esbuild@0.25.0",
    "react@18.3.1",
    "react-dom@18.3.1",
)
APP = Path(__file__).with_name("drawn")
BUNDLE = (
    "--bundle",
    "--outfile=out.js",
    "--loader:.ttf=empty",
    '--define:process.env.NODE_ENV="production"',
)
SECONDS = 60  # of a run that are drawn
STATES = {"drawn", "explained"}


@pytest.mark.processes
@pytest.mark.skipif(not LONG, reason="half a gigabyte of packages: HEADRACE_SOAK=1")
def test_every_panel_is_drawn_or_says_why_not(live: Live, tmp_path: Path) -> None:
    began = time.time()
    bundled(tmp_path)
    until(lambda: time.time() > began + SECONDS, "a minute of the run")
    (tmp_path / "data.js").write_text(f"window.DATA = {json.dumps(collected(live.prometheus))}")
    pictures = Path(os.environ.get("HEADRACE_PICTURES", tmp_path))
    with browser() as chrome:
        for at, board in enumerate(BOARDS):
            titles = {panel.title for panel in board.panels}
            for mode in ("light", "dark"):
                chrome.see(width=1640, height=900)
                chrome.open(f"file://{tmp_path}/index.html?board={at}&mode={mode}")
                chrome.until(f"location.search.includes('board={at}&mode={mode}') && window.drawn")
                height = chrome.get("document.documentElement.scrollHeight")
                chrome.see(width=1640, height=height)
                (pictures / f"{board.name}-{mode}.png").write_bytes(chrome.picture())
                found = chrome.get(
                    "[...document.querySelectorAll('[data-panel]')]"
                    ".map(({ dataset: { panel, state } }) => [panel, state])"
                )
                assert {title for title, _ in found} == titles
                assert {state for _, state in found} <= STATES, (board.name, found)
                failed = "[...document.querySelectorAll('[data-failed]')].map((o) => o.textContent)"
                assert chrome.get(failed) == [], board.name
                assert "No data" not in chrome.get("document.body.innerText")
        assert not [one for one in chrome.complaints if "exceptionThrown" in one]


def bundled(folder: Path) -> None:
    """Puts the page that draws into the folder, with Grafana's components in it."""
    shutil.copytree(APP, folder, dirs_exist_ok=True)
    install(folder, PACKAGES, timeout_s=300)
    done = subprocess.run(
        ["node_modules/.bin/esbuild", "app.jsx", *BUNDLE],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def collected(prometheus: Prometheus) -> dict[str, Any]:
    """The dashboards with the last minute of what their targets ask for."""
    until_s = int(time.time())
    since_s = until_s - SECONDS
    boards = []
    for board in BOARDS:
        made = json.loads((GRAFANA / "dashboards" / f"{board.name}.json").read_text())
        for panel in made["panels"]:
            for target in panel.get("targets", []):
                query = target["expr"].replace("$__rate_interval", "10s")
                query = query.replace("$job", "headrace")
                span = {"start": str(since_s), "end": str(until_s), "step": "1"}
                now = {"time": str(until_s)}
                target["result"] = (
                    prometheus.ask("query", query=query, **now)["result"]
                    if target["instant"]
                    else prometheus.ask("query_range", query=query, **span)["result"]
                )
        boards.append(made)
    return {"from": since_s, "to": until_s, "boards": boards}
