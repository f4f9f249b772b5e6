"""The guides: every line of their shell blocks runs, word for word, from top to bottom.

A block that says `sh terminals` is of processes side by side; what comes after it runs beside them,
until an audit waits for their end. Other lines end with the status that their comment tells, or 0.
"""

import json
import re
import shlex
import signal
import socket
from pathlib import Path

from headrace.launch.bench.gates.learning_gates import GATES
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


def say(place: Place, line: str) -> Process:
    """No line holds more than words and a comment, so no shell is needed to take it apart."""
    program, *words = shlex.split(line, comments=True)
    assert program == "headrace", line
    return place.headrace(*words)


def status_of(line: str) -> int:
    told = re.search(r"# status (\d)", line)
    return int(told[1]) if told else 0


def solved_at_steps(place: Place) -> int:
    """Of the newest run."""
    summaries = place.folder.glob("headrace-runs/*/summary.json")
    newest = max(summaries, key=lambda path: path.stat().st_mtime)
    found: int = json.loads(newest.read_text())["solved_at_steps"]
    return found


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def test_the_guide_runs_as_it_stands(place: Place) -> None:
    # The ports that the guide names, and the one beside the broker's.
    busy = [port for port in (5755, 5756, 9100, 9101) if not is_free(port)]
    if busy:
        missing(f"ports {busy} are taken on this machine; the guide's lines need them")
    beside: dict[str, Process] = {}
    for together, lines in blocks(GUIDE):
        if together:
            beside = {line: say(place, line) for line in lines}
            next(iter(beside.values())).says("run cartpole at tcp://127.0.0.1:5755")
            continue
        for line in lines:
            if "audit" in line:
                end(beside)
                beside = {}
            process = say(place, line)
            status = process.ends(timeout_s=4 * LONG_S)
            if "several runs are on this machine" in process.text():  # those of tests beside it
                assert (line, status) == (
                    "headrace top",
                    2,
                ) and "tcp://127.0.0.1:5755 (" in process.text()
                continue
            assert status == status_of(line), f"{line}: {status}\n{process.text()}"
            if line.startswith("headrace train") and status == 0:
                assert solved_at_steps(place) <= GATES["cartpole-appo"].steps
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
