"""The dashboards against Grafana's own types."""

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from grafana.generate.__main__ import GRAFANA
from tests.needs import missing

PACKAGES = ("@grafana/schema@13.2.3", "typescript@5.9.3")
TSC = ("--noEmit", "--strict", "--skipLibCheck", "--module", "nodenext", "dashboards.ts")


def install(folder: Path, packages: Sequence[str] = PACKAGES, *, timeout_s: float = 60) -> None:
    """Installs packages of npm; those of the types depend on no others."""
    (folder / "package.json").write_text('{"private": true, "type": "module"}')
    if shutil.which("npm") is None:
        missing("npm, which brings Grafana's types, is not here; on Debian: apt-get install npm")
    npm = ["npm", "install", "--prefer-offline", "--ignore-scripts", "--no-audit", "--no-fund"]
    npm += ["--legacy-peer-deps"]  # else Grafana's libraries bring each other's whole trees
    why = ""
    for _ in range(3):  # a registry is busy at times
        try:
            done = subprocess.run(
                [*npm, *packages], cwd=folder, capture_output=True, text=True, timeout=timeout_s
            )
        except subprocess.TimeoutExpired:
            why = f"not within {timeout_s:.0f} s: is there a network?"
            continue
        if not done.returncode:
            return
        why = str(done.stderr.strip().splitlines()[-1:])
    missing(f"npm brings no Grafana types: {why}")


def checks(board: dict[str, Any]) -> list[str]:
    """A dashboard as calls of the functions in types.ts; a literal's unknown keys are errors."""
    calls = [f"dashboard({json.dumps(board)});"]
    for panel in board["panels"]:
        if panel["type"] != "row":
            calls.append(f"options({json.dumps(panel['type'])}, {json.dumps(panel['options'])});")
            custom = panel["fieldConfig"]["defaults"].get("custom")
            if custom is not None:
                calls.append(f"lines({json.dumps(custom)});")
    return calls


@pytest.mark.processes
def test_grafana_knows_every_key_and_value(tmp_path: Path) -> None:
    install(tmp_path)
    text = [Path(__file__).with_name("types.ts").read_text()]
    for path in sorted((GRAFANA / "dashboards").glob("*.json")):
        text += [f"// {path.name}", *checks(json.loads(path.read_text()))]
    (tmp_path / "dashboards.ts").write_text("\n".join(text))
    done = subprocess.run(
        ["node_modules/.bin/tsc", *TSC], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
