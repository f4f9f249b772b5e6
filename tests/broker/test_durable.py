"""Files that are whole or not there, whatever befalls the one who writes them."""

import errno
import os
import stat
from pathlib import Path

import pytest

from headrace.broker import durable
from tests.needs import missing
from tests.system.harness import calls, disks

WRITTEN, REFUSED = 0, 10


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_it_writes_and_writes_over(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    durable.write(path, "one")
    durable.write(path, b"two")
    assert path.read_text() == "two"
    assert names(tmp_path) == ["a.json"]


def test_a_new_file_has_its_rights_and_never_takes_anothers_place(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    durable.write(path, "one", mode=0o600, new=True)
    with pytest.raises(FileExistsError):
        durable.write(path, "two", mode=0o600, new=True)
    assert path.read_text() == "one"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert names(tmp_path) == ["secret"]


def test_what_a_killed_process_of_our_number_left_is_no_obstacle(tmp_path: Path) -> None:
    left = tmp_path / f".a.{os.getpid()}.part"
    left.write_text("half of something lo")
    durable.write(tmp_path / "a", "one")
    assert (tmp_path / "a").read_text() == "one"
    assert not left.exists()


def test_a_link_stays_one_and_what_is_no_file_is_written_to(tmp_path: Path) -> None:
    link, far = tmp_path / "link", tmp_path / "far"
    far.write_text("old")
    link.symlink_to(far)
    durable.write(link, "new")
    assert link.is_symlink()
    assert far.read_text() == "new"
    reading, writing = os.pipe()
    durable.write(Path(f"/proc/self/fd/{writing}"), "through")
    assert os.read(reading, 100) == b"through"
    os.close(reading)
    os.close(writing)
    with pytest.raises(IsADirectoryError):
        durable.write(tmp_path, "a folder")


@pytest.mark.processes
@pytest.mark.parametrize("new", [False, True])
@pytest.mark.parametrize(
    ("trouble", "code"), [("kill", 0), ("once", errno.ENOSPC), ("lasting", errno.EROFS)]
)
def test_killed_or_refused_at_every_system_call(
    tmp_path: Path, new: bool, trouble: str, code: int
) -> None:
    if not calls.possible():
        missing("system calls can be stopped on Linux, x86_64 only")
    path = tmp_path / "a"

    def work() -> int:
        try:
            durable.write(path, "new" * 1000, new=new)
        except OSError:
            return REFUSED
        return WRITTEN

    at, seen = 0, set[int]()
    while True:
        path.unlink(missing_ok=True)
        if not new:
            path.write_text("old")
        kill, fail = (at, -1) if trouble == "kill" else (-1, at)
        ended = calls.run(work, kill=kill, fail=fail, code=code, lasting=trouble == "lasting")
        before = None if new else "old"
        now = path.read_text() if path.exists() else None
        assert now in (before, "new" * 1000), (at, ended)
        assert ended.status in (WRITTEN, REFUSED, -9), (at, ended)
        assert ended.status != WRITTEN or now == "new" * 1000
        seen.add(ended.status)
        if at >= len(ended.calls):
            break
        at += 1
    assert at > 5
    assert seen == {WRITTEN, -9 if trouble == "kill" else REFUSED}
    durable.write(path, "later")
    assert path.read_text() == "later"


@pytest.mark.processes
def test_on_a_full_disk_the_file_before_stays(tmp_path: Path) -> None:
    with disks.disk(tmp_path / "disk", 256) as disk:
        path = disk / "a.json"
        durable.write(path, "old")
        ballast = disks.fill(disk)
        with pytest.raises(OSError, match="No space left"):
            durable.write(path, "new" * 10_000)
        assert path.read_text() == "old"
        ballast.unlink()
        assert names(disk) == ["a.json"]
        durable.write(path, "new")
        assert path.read_text() == "new"
