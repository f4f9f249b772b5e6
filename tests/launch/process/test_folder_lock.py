"""One learner in a folder: the lock is the process's, and ends with it."""

import errno
import fcntl
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.launch.process.folder_lock import FolderLockError, in_use, lock_folder

HOLDS = """
import os, sys, time
from pathlib import Path
from headrace.launch.process.folder_lock import lock_folder
with lock_folder(Path(sys.argv[1]), "learner-0"):
    if os.fork() == 0:
        time.sleep(60)  # a child that outlives us holds nothing
    print(os.getpid(), flush=True)
    time.sleep(60)
"""


@contextmanager
def another(out: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that is at work there, with a child."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(out)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline()
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


@pytest.mark.processes
def test_one_at_a_time(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    assert not in_use(out, "learner-0")
    with another(out) as there:
        assert in_use(out, "learner-0") and not in_use(out, "train")
        with (
            pytest.raises(FolderLockError) as raised,
            lock_folder(out, "learner-0", patience_s=0.0),
        ):
            pass
        assert str(raised.value).startswith(
            f"{out} is in use: another learner-0 (process {there.pid} on "
        )
        with lock_folder(out, "evaluator", patience_s=0.0):
            pass  # another kind
        there.kill()
        there.wait()
        with lock_folder(out, "learner-0", patience_s=5.0):
            pass  # its child lives on


@pytest.mark.processes
def test_who_comes_a_moment_early_waits(tmp_path: Path) -> None:
    with another(tmp_path) as there:
        began = time.monotonic()
        later = subprocess.Popen(["sh", "-c", f"sleep 0.3; kill -9 {there.pid}"])
        with lock_folder(tmp_path, "learner-0", patience_s=30.0):
            assert time.monotonic() - began >= 0.3
        later.wait()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(FolderLockError, match="choose another folder with --out"),
        lock_folder(tmp_path / "file" / "out", "learner-0"),
    ):
        pass


def test_where_nothing_can_be_locked_a_line_warns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", refuse)
    caplog.set_level(logging.WARNING)
    with lock_folder(tmp_path, "learner-0"):
        pass
    (said,) = caplog.messages
    assert "cannot be locked" in said and "No locks available" in said
