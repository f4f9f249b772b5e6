"""A real Prometheus with the shipped configuration, at the pace of a test."""

import json
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from grafana.generate.__main__ import GRAFANA
from tests import ports
from tests.needs import missing
from tests.system.conftest import Place, Process

RULES = ("recording.yaml", "alerts.yaml")


class Prometheus:
    """Runs a Prometheus that scrapes each second."""

    def __init__(self, place: Place, config: Path) -> None:
        self.port = ports.free()
        log = place.folder / "prometheus.log"
        with log.open("wb") as file:
            popen = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={config}",
                    f"--storage.tsdb.path={place.folder}/tsdb",
                    f"--web.listen-address=127.0.0.1:{self.port}",
                ],
                stdout=file,
                stderr=file,
            )
        self.process = Process(popen, log)
        self.process.says("ready to receive web requests")

    def ask(self, path: str, **parameters: str) -> Any:
        """The data of an answer; an expression that it does not take is an error."""
        query = urllib.parse.urlencode(parameters)
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{query}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{parameters}: {error.read().decode()}") from None

    def up(self) -> dict[str, int]:
        """Role -> targets that answer."""
        found = self.ask("query", query="sum by (role) (up)")["result"]
        return {one["metric"]["role"]: int(one["value"][1]) for one in found}


@contextmanager
def watching(place: Place, broker: int, rules: Path = GRAFANA) -> Iterator[Prometheus]:
    """Runs one with the shipped configuration: its one line edited, the pace a second. `rules`:
    the folder of the rules."""
    if shutil.which("prometheus") is None:
        missing(
            "prometheus, which dashboards ask, is not here; on Debian: apt-get install prometheus"
        )
    text = (GRAFANA / "prometheus.yml").read_text()
    text, edited = re.subn(
        r"http://\S+(/sd  # <- edit this line)", rf"http://127.0.0.1:{broker}\1", text
    )
    assert edited == 1
    text = re.sub(r"\b(\w+_interval): 10s", r"\1: 1s", text)
    text = re.sub(r"- (\w+\.yaml)", rf"- {rules}/\1", text)
    config = place.folder / "prometheus.yml"
    config.write_text(text)
    made = Prometheus(place, config)
    try:
        yield made
    finally:
        made.process.kill()


def hasty_rules(folder: Path) -> Path:
    """Writes the shipped rules with seconds for minutes and hours; returns their folder."""
    for name in RULES:
        text = (GRAFANA / name).read_text()
        text = re.sub(r"\bfor: \w+", "for: 1s", text)
        text = re.sub(r"\[(1|5|10|15)m\]", "[8s]", text)
        text = text.replace("[1h]", "[10s]")
        text = text.replace("6 * 3600", "120").replace("> 2 * 3600", "> 0")
        (folder / name).write_text(text)
    return folder
