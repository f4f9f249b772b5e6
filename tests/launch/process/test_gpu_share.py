"""Processes that share a GPU take hundredths of it, until there are none, and until they end."""

import multiprocessing
import os
import signal
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from headrace.launch.config.run_file import ConfigError
from headrace.launch.process import gpu_share

GPU = "GPU-1234"
FORK = multiprocessing.get_context("fork")


def hold(share: float, gpu: str, line: Connection) -> None:
    """Takes its share as another learner does, says so, and keeps it until it is told."""
    try:
        with gpu_share.taken(share, gpu, patience_s=0.0):
            line.send("")
            line.recv()
    except ConfigError as error:
        line.send(str(error))


class Other:
    """Takes a share in a process of its own."""

    def __init__(self, share: float, gpu: str = GPU) -> None:
        self.line, end = FORK.Pipe()
        self.process = FORK.Process(target=hold, args=(share, gpu, end))
        self.process.start()
        self.refused: str = self.line.recv()  # "" = it has its share

    def ends(self, *, killed: bool = False) -> None:
        if killed:
            assert self.process.pid
            os.kill(self.process.pid, signal.SIGKILL)
        elif not self.refused:
            self.line.send("")
        self.process.join()
        self.line.close()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    return tmp_path


@pytest.mark.processes
def test_shares_are_taken_until_there_are_none() -> None:
    others = [Other(0.5), Other(0.25), Other(0.2)]
    assert [one.refused for one in others] == ["", "", ""]
    more = Other(0.1)
    assert more.refused == (
        "learner.gpu_share = 0.1: other learners have 95 % of GPU GPU-1234; lower it, or end one"
        " of them"
    )
    fits, elsewhere = Other(0.05), Other(1.0, "GPU-5678")
    assert [fits.refused, elsewhere.refused] == ["", ""]
    others[0].ends(killed=True)  # nobody cleans up after it
    others[1].ends()
    after = Other(0.75)
    assert not after.refused
    for one in (others[2], more, fits, elsewhere, after):
        one.ends()


@pytest.mark.processes
def test_one_that_is_refused_takes_nothing() -> None:
    one = Other(0.6)
    assert Other(0.5).refused
    with gpu_share.taken(0.4, GPU, patience_s=0.0):
        pass
    one.ends()
    with gpu_share.taken(1.0, GPU, patience_s=0.0):
        pass


@pytest.mark.processes
def test_it_waits_for_one_that_is_just_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Other(0.8)
    monkeypatch.setattr(time, "sleep", lambda _: one.ends())
    with gpu_share.taken(0.5, GPU):
        pass


def test_a_place_that_cannot_be_written_is_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(folder / "nowhere"))
    words = r"cannot count who uses the GPU in .*nowhere.*No such"
    with pytest.raises(ConfigError, match=words), gpu_share.taken(0.5, GPU):
        pass
