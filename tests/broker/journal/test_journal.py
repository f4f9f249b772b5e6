"""One process's journal: what it writes, where it goes on, and how it ends."""

import errno
import logging
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.journal import journal_files
from headrace.broker.journal.journal import Journal
from headrace.broker.protocol.messages import Outcome


def lines(folder: Path) -> list[str]:
    return (folder / "actor-7.log").read_text().splitlines()


def test_every_kind_of_line(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "actor-7.log")
    journal.joins("actor", 7, "node 3\nof\u2028rack 1")
    journal.plays(7, 4)
    journal.generated(7, 2, 0, 32)
    journal.acknowledged(7, [(2, 0, 1), (3, 4, 9)], Outcome.STALE)
    journal.acknowledged(7, [], 0)
    journal.given_up(7, [(2, 1, 2)])
    journal.trained([(7, 2, 5), (8, 0, 1)], 12)
    journal.rejected([(7, 2, 6)])
    journal.settled({(7, 2, Outcome.POISON): [4, 3, 9]})
    journal.window(12)
    journal.close()
    assert lines(tmp_path) == [
        "P actor 7 node 3 of rack 1",
        "S 7 4",
        "G 7 2 0 32",
        "A 7 2 0 1 stale",
        "A 7 3 4 9 stale",
        "X 7 2 1 2",
        "T 7 2 5 12",
        "T 8 0 1 12",
        "R 7 2 6 7",
        "B 7 2 3 5 poison",
        "B 7 2 9 10 poison",
        "W 12",
        "E",
    ]


def test_each_line_is_on_disk_before_the_call_returns(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "actor-7.log")
    for seq in range(5):
        journal.generated(7, 0, seq, 1)
        assert len(lines(tmp_path)) == seq + 1
    journal.close()


def test_without_a_folder_it_writes_nothing(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    journal = Journal(None, "actor-7.log")
    journal.joins("actor", 7, "x")
    journal.generated(7, 0, 0, 1)
    journal.acknowledged(7, [(0, 0, 1)], 0)
    journal.begins(3)
    journal.close()
    assert list(tmp_path.iterdir()) == []


def test_two_begin_in_one_file_and_nothing_is_written_over(tmp_path: Path) -> None:
    """A process id may come again."""
    for seq in range(2):
        journal = Journal(tmp_path, "actor-7.log")
        journal.generated(7, 0, seq, 1)
        journal.close()
    assert lines(tmp_path) == ["G 7 0 0 1", "E", "G 7 0 1 1", "E"]


@pytest.mark.parametrize("room", [0, 4])
def test_a_full_disk_ends_it_and_leaves_a_mark(
    room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """There may be room for a part of the line: then the kernel says so, and no error."""
    journal = Journal(tmp_path, "actor-7.log")
    journal.generated(7, 0, 0, 1)
    real = os.write

    def full(fd: int, data: bytes) -> int:
        if not room:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data[:room])

    with monkeypatch.context() as now, caplog.at_level(logging.ERROR):
        now.setattr("headrace.broker.journal.journal.os.write", full)
        journal.generated(7, 0, 1, 1)
    journal.generated(7, 0, 2, 1)  # there is room again, and it stays as it was
    journal.close()
    assert caplog.text.count("the journal ends here") == 1
    assert lines(tmp_path) == ["G 7 0 0 1", *(["G 7 "] if room else [])]
    assert journal_files.journals(tmp_path)["actor-7"].short


def test_it_goes_on_in_another_file_and_folds_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_files, "LARGE", 1000)
    journal = Journal(tmp_path, "actor-7.log")
    for seq in range(1000):
        journal.generated(7, 0, seq, 2)
        if journal._folding is not None:
            journal._folding.join()
    journal.close()
    found = journal_files.journals(tmp_path)["actor-7"]
    assert found.missing == []
    assert found.segments[0].folded and not found.segments[-1].folded
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 5000
    (line,) = found.segments[0].path.read_text().splitlines()
    letter, inc, stream, lo, hi, steps = line.split()
    assert (letter, inc, stream, lo, int(steps)) == ("g", "7", "0", "0", 2 * int(hi))


def test_without_another_file_it_goes_on_in_the_one_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No descriptor is left, say."""
    monkeypatch.setattr(journal_files, "LARGE", 100)
    journal = Journal(tmp_path, "actor-7.log")

    def full(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as now:
        now.setattr("headrace.broker.journal.journal.os.open", full)
        for seq in range(30):
            journal.generated(7, 0, seq, 1)
    assert len(lines(tmp_path)) == 30
    for seq in range(30, 60):
        journal.generated(7, 0, seq, 1)
    journal.close()
    assert len(journal_files.journals(tmp_path)["actor-7"].segments) > 1


def test_a_disk_that_will_not_fold_keeps_the_long_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(journal_files, "LARGE", 100)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("headrace.broker.durable.os.fsync", full)
    journal = Journal(tmp_path, "actor-7.log")
    for seq in range(50):
        journal.generated(7, 0, seq, 1)
    journal.close()
    found = journal_files.journals(tmp_path)["actor-7"]
    assert not any(part.folded for part in found.segments)
    assert sum(len(part.path.read_text().splitlines()) for part in found.segments) == 51
    assert "keeps its long form" in caplog.text
    assert list(tmp_path.glob("*.part")) == []


def test_what_is_damaged_is_not_folded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "actor-7.log").write_text("G 7 0 0 1\nnonsense\n")
    (tmp_path / "actor-7.1.log").write_text("G 7 0 1 1\n")
    journal_files.fold(tmp_path, "actor-7", 1)
    assert "damaged" in caplog.text
    assert (tmp_path / "actor-7.log").exists()
    assert list(tmp_path.glob("*-*.*-*.log")) == []


@pytest.mark.slow
def test_folding_takes_little_memory(tmp_path: Path) -> None:
    """A role that folds keeps for ever what that took."""
    lines = "".join(f"G 7123456789012345678 0 {seq} 16\n" for seq in range(100_000))
    (tmp_path / "actor-7.log").write_text(lines)
    (tmp_path / "actor-7.1.log").write_text("")
    assert len(lines) > 3_000_000
    del lines
    tracemalloc.start()
    try:
        journal_files.fold(tmp_path, "actor-7", 1)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (tmp_path / "actor-7.0-0.log").exists()
    assert most < 1_000_000
