"""One traceback for all processes of a run."""

import io
import logging
from pathlib import Path

import pytest

from headrace.launch.process import shown_tracebacks
from headrace.launch.process.log_lines import Identity
from headrace.launch.process.logs import ToStderr

TOLD = """Traceback (most recent call last):
  File "maze.py", line {line}, in step
    turn()
Error: {why}"""


def said(monkeypatch: pytest.MonkeyPatch, role: str, line: int, why: str) -> str:
    """What another process writes."""
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    record = logging.makeLogRecord(
        {"msg": "maze failed: %s", "args": (why,), "traceback": TOLD.format(line=line, why=why)}
    )
    ToStderr(Identity(role), json=False).emit(record)
    assert record.getMessage() == f"maze failed: {why}", "the broker is told the same as ever"
    return stream.getvalue()


def test_the_first_process_shows_it_and_the_others_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shown_tracebacks.shared(tmp_path):
        first = said(monkeypatch, "actor-0", 3, "seed 1")
        again = said(monkeypatch, "actor-1", 3, "seed 2")
        other = said(monkeypatch, "actor-1", 4, "seed 2")
    assert "line 3" in first and "seed 1" in first
    assert "Traceback" not in again and again.count("\n") == 1
    assert again.endswith("maze failed: seed 2 (the traceback is shown once, above)\n")
    assert "line 4" in other


def test_alone_and_on_a_full_disk_each_process_shows_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        assert "line 3" in said(monkeypatch, "actor-0", 3, "seed 1")
    with shown_tracebacks.shared(tmp_path / "missing"):
        for _ in range(2):
            assert "line 3" in said(monkeypatch, "actor-0", 3, "seed 1")
