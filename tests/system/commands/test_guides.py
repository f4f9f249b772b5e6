"""The guides: every line of their shell blocks runs, word for word, from top to bottom.

A block that says `sh terminals` is of processes side by side; what comes after it runs beside them,
until an audit waits for their end. Other lines end with the status that their comment tells, or 0.
"""

import os
import re
import shlex
import signal
import socket
import sys
from pathlib import Path

import pytest

from tests.needs import missing
from tests.system.conftest import LONG_S, Place, Process

ROOT = Path(__file__).parents[3]
GUIDE = ROOT / "docs" / "start" / "one-machine.md"
BLOCK = re.compile(r"^```(sh(?: terminals)?)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# What stays until it is told to stop; the others end with the run.
STAYS = "broker"


def blocks(guide: Path) -> list[tuple[bool, list[str]]]:
    """(are they side by side, lines)"""
    return [
        (kind != "sh", text.strip().splitlines()) for kind, text in BLOCK.findall(guide.read_text())
    ]


@pytest.fixture
def shell(place: Place) -> dict[str, str]:
    """An environment in which `headrace` is the one of this checkout."""
    programs = place.folder / "bin"
    programs.mkdir()
    headrace = programs / "headrace"
    headrace.write_text(
        f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m headrace.launch.cli "$@"\n'
    )
    headrace.chmod(0o755)
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": paths}


def say(place: Place, line: str, shell: dict[str, str]) -> Process:
    """To a shell that becomes the process, so that it can be told to stop."""
    code = "import os, sys; os.execvp('sh', ['sh', '-c', 'exec ' + sys.argv[1]])"
    return place.python("-c", code, line, env=shell)


def status_of(line: str) -> int:
    told = re.search(r"# status (\d)", line)
    return int(told[1]) if told else 0


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def test_the_guide_runs_as_it_stands(place: Place, shell: dict[str, str]) -> None:
    # The ports that the guide names, and the one beside the broker's.
    busy = [port for port in (5755, 5756, 9100, 9101) if not is_free(port)]
    if busy:
        missing(f"ports {busy} are taken on this machine; the guide's lines need them")
    beside: dict[str, Process] = {}
    for together, lines in blocks(GUIDE):
        if together:
            beside = {line: say(place, line, shell) for line in lines}
            next(iter(beside.values())).says("run cartpole at tcp://127.0.0.1:5755")
            continue
        for line in lines:
            if "audit" in line:
                end(beside)
                beside = {}
            process = say(place, line, shell)
            status = process.ends(timeout_s=4 * LONG_S)
            assert status == status_of(line), f"{line}: {status}\n{process.text()}"
    folder = place.folder / "headrace-runs" / "cartpole"
    for name in (
        "run.toml",
        "summary.json",
        "history.jsonl",
        "curve.png",
        "evaluations.jsonl",
        "best",
        "checkpoints",
        "ledger",
        "report.html",
    ):
        assert (folder / name).exists(), name
    assert not place.alive()


def end(processes: dict[str, Process]) -> None:
    """The run reaches its goal; then who stays is told to stop."""
    for line, process in processes.items():
        if STAYS not in line.split()[1]:
            assert process.ends(timeout_s=4 * LONG_S) == 0, process.text()
    for line, process in processes.items():
        if STAYS in line.split()[1]:
            process.signal(signal.SIGINT)
            assert process.ends() == 0, process.text()
