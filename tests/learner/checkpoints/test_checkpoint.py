"""Checkpoints: complete, verified, and safe from a kill, a full disk and a flipped bit."""

import errno
import logging
import os
import random
import re
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from headrace.learner import train_state
from headrace.learner.algorithms import optimiser_state
from headrace.learner.checkpoints import checkpoint
from headrace.learner.checkpoints.checkpoint import CheckpointError
from headrace.learner.checkpoints.manifest import sealed

TENSORS: checkpoint.TensorGroups = {
    "model": {"a.weight": torch.arange(12.0).reshape(3, 4), "b16": torch.ones(3).bfloat16()},
    "optimiser": {},
    "rng": {"step": torch.tensor(7.0), "bytes": torch.arange(5, dtype=torch.uint8)},
}
BIG: checkpoint.TensorGroups = {"model": {"weight": torch.ones(16 << 20)}}
STATE: dict[str, Any] = {
    "lr": 6e-4,
    "seen": {"actor-1": {"next": 12, "gaps": [3, 5, 2**63]}},
    "window": b"\x00\xff",
    "nothing": None,
}


def save(folder: Path, version: int, *, keep: int = 3, **state: Any) -> Path:
    return checkpoint.save(
        folder, step_version=version, tensors=TENSORS, state={**STATE, **state}, keep=keep
    )


def latest(folder: Path) -> checkpoint.Checkpoint:
    found = checkpoint.load_latest(folder)
    assert found is not None
    return found


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_round_trip(tmp_path: Path) -> None:
    path = save(tmp_path / "run" / "checkpoints", 1234)
    assert path.name == "000000001234"
    found = latest(path.parent)
    assert (found.version, found.state, found.path) == (1234, STATE, path)
    assert found.tensors.keys() == TENSORS.keys()
    for stem, group in TENSORS.items():
        assert found.tensors[stem].keys() == group.keys()
        for name, tensor in group.items():
            back = found.tensors[stem][name]
            assert back.dtype == tensor.dtype and torch.equal(back, tensor)


def test_tensors_that_share_memory_or_have_gaps(tmp_path: Path) -> None:
    base = torch.arange(6.0).reshape(2, 3)
    group = {"tied": base, "also": base, "t": base.t(), "row": base[1]}
    path = checkpoint.save(tmp_path, step_version=1, tensors={"model": group}, state={}, keep=2)
    back = checkpoint.load(path).tensors["model"]
    assert all(torch.equal(back[name], group[name]) for name in group)


def test_what_is_read_back_takes_no_memory_until_it_is_written_on(tmp_path: Path) -> None:
    """Else each rank would hold all of a network that is spread over them, three times."""
    checkpoint.save(tmp_path, step_version=1, tensors=BIG, state={}, keep=2)
    before = own_memory()
    found = latest(tmp_path).tensors["model"]["weight"]
    assert float(found.sum()) == found.numel()  # all of it was read
    assert own_memory() - before < found.nbytes / 4
    found.add_(1.0)
    assert own_memory() - before >= found.nbytes
    again = latest(tmp_path).tensors["model"]["weight"]
    assert torch.equal(again, BIG["model"]["weight"]), "the file is as it was"


def own_memory() -> int:
    """Returns the bytes that this process holds and shares with no file."""
    held = re.search(r"^Anonymous: +(\d+)", Path("/proc/self/smaps_rollup").read_text(), re.M)
    assert held is not None
    return int(held[1]) * 1024


def test_an_empty_or_absent_folder_holds_none(tmp_path: Path) -> None:
    assert checkpoint.load_latest(tmp_path) is None
    assert checkpoint.load_latest(tmp_path / "absent") is None


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    for version in (3, 8, 20, 100):
        save(tmp_path, version, keep=2)
    assert names(tmp_path) == ["000000000020", "000000000100"]


def test_the_first_of_every_so_many_stays(tmp_path: Path) -> None:
    for version in (3, 8, 20, 25, 29, 41, 52, 58, 100):
        checkpoint.save(tmp_path, step_version=version, tensors={}, state={}, keep=2, keep_every=20)
    assert [int(name) for name in names(tmp_path)] == [3, 20, 41, 58, 100]


def test_a_damaged_future_does_not_push_out_what_is_saved_now(tmp_path: Path) -> None:
    for version in (90, 91, 92):
        (tmp_path / f"{version:012d}").mkdir()
    save(tmp_path, 5, keep=2)
    save(tmp_path, 6, keep=2)
    assert latest(tmp_path).version == 6


def test_the_same_version_again_replaces_it(tmp_path: Path) -> None:
    save(tmp_path, 1, attempt=1)
    save(tmp_path, 1, attempt=2)
    assert latest(tmp_path).state["attempt"] == 2
    assert names(tmp_path) == ["000000000001"]


def test_killed_while_replacing(tmp_path: Path) -> None:
    """The old one is already aside and the new one not yet in place: the old one counts."""
    path = save(tmp_path, 1)
    path.rename(path.with_suffix(".replaced"))
    assert latest(tmp_path).version == 1
    save(tmp_path, 2)
    assert names(tmp_path) == ["000000000002"]


def test_leftovers_are_swept(tmp_path: Path) -> None:
    (tmp_path / "000000000001.tmp").mkdir()
    (tmp_path / "000000000001.tmp" / "model.safetensors").write_bytes(b"half")
    assert checkpoint.load_latest(tmp_path) is None
    save(tmp_path, 2)
    assert names(tmp_path) == ["000000000002"]


def test_what_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.tmp").write_text("a person's")
    save(tmp_path, 2)
    assert names(tmp_path) == ["000000000002", "notes.tmp"]


def test_every_new_folder_is_durable_in_the_one_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def record(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    save(tmp_path / "run" / "checkpoints", 1)
    assert synced[:2] == [tmp_path.name, "run"]


def test_everything_is_durable_before_it_has_a_name_and_before_anything_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    events: list[str] = []
    fsync, rename, rmtree = os.fsync, Path.rename, shutil.rmtree

    def record_fsync(descriptor: int) -> None:
        events.append(f"sync {Path(f'/proc/self/fd/{descriptor}').readlink().name}")
        fsync(descriptor)

    def record_rename(path: Path, target: Path) -> Path:
        events.append(f"rename {path.name}")
        return rename(path, target)

    def record_rmtree(path: Path, **options: Any) -> None:
        events.append(f"remove {path.name}")
        rmtree(path, **options)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(Path, "rename", record_rename)
    monkeypatch.setattr(shutil, "rmtree", record_rmtree)
    save(tmp_path, 3, keep=2)
    files = [f"{stem}.safetensors" for stem in TENSORS] + ["state.msgpack", "manifest.json"]
    assert events == [
        *(f"sync {name}" for name in files),
        "sync 000000000003.tmp",
        "rename 000000000003.tmp",
        f"sync {tmp_path.name}",
        "rename 000000000001",
        "remove 000000000001.gone",
    ]


def damage_each(path: Path, *, flip: bool, times: int) -> Iterator[str]:
    """Damages one file of `path` after another, restoring it after each."""
    rng = random.Random(int(flip))
    files = sorted(path.iterdir())
    for turn in range(times):
        file = files[turn % len(files)]
        whole = file.read_bytes()
        if flip:
            at = rng.randrange(len(whole))
            damaged = bytearray(whole)
            damaged[at] ^= 1 << rng.randrange(8)
            file.write_bytes(damaged)
        else:
            at = rng.randrange(len(whole))
            file.write_bytes(whole[:at])
        yield f"{file.name} at {at}"
        file.write_bytes(whole)


@pytest.mark.parametrize("flip", [True, False], ids=["flip", "truncate"])
def test_every_damage_is_detected_and_the_one_before_used(
    tmp_path: Path, flip: bool, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, 1)
    newest = save(tmp_path, 2)
    for what in damage_each(newest, flip=flip, times=200):
        caplog.clear()
        assert latest(tmp_path).version == 1, what
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert "000000000002" in record.getMessage() and "\n" not in record.getMessage()
    assert latest(tmp_path).version == 2


def test_a_missing_file_and_a_wrong_folder_are_damage(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    (path / "optimiser.safetensors").rename(path / "elsewhere")
    with pytest.raises(CheckpointError, match=r"optimiser\.safetensors"):
        checkpoint.load(path)
    (path / "elsewhere").rename(path / "optimiser.safetensors")
    with pytest.raises(CheckpointError, match="that of version 1"):
        checkpoint.load(path.rename(tmp_path / f"{7:012d}"))


def test_a_manifest_cannot_lead_out_of_its_folder(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    files = {"../secret.safetensors": {"size": 0, "xxh3_128": ""}}
    (path / "manifest.json").write_bytes(sealed(1, files))
    with pytest.raises(CheckpointError, match="unknown file"):
        checkpoint.load(path)


def test_when_all_are_damaged_a_person_decides(tmp_path: Path) -> None:
    for version in (1, 2):
        (save(tmp_path, version) / "state.msgpack").unlink()
    with pytest.raises(CheckpointError, match="000000000002, 000000000001"):
        checkpoint.load_latest(tmp_path)


@pytest.mark.parametrize(
    "facts",
    [
        {"version": "1", "files": {}},
        {"version": 1, "files": []},
        {"version": 1, "files": {"state.msgpack": []}},
        {"version": 1, "files": {"state.msgpack": {}}},
        {"version": 1, "files": {}},
    ],
)
def test_a_manifest_of_another_shape_is_damage(tmp_path: Path, facts: dict[str, Any]) -> None:
    """Sealed as ours are, so only somebody's own program can have written it."""
    path = save(tmp_path, 1)
    (path / "manifest.json").write_bytes(sealed(facts["version"], facts["files"]))
    with pytest.raises(CheckpointError, match="is damaged: "):
        checkpoint.load(path)


def test_a_manifest_as_deep_as_a_well_is_damage(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    (path / "manifest.json").write_bytes(b"[" * 100_000)
    with pytest.raises(CheckpointError, match="cannot be read: RecursionError"):
        checkpoint.load(path)


def test_a_damaged_one_that_was_passed_over_does_not_push_out_a_good_one(tmp_path: Path) -> None:
    """Versions 1 to 3 with 3 damaged: training goes on from 2, and reaches 3 and 4 again."""
    for version in (1, 2, 3):
        newest = save(tmp_path, version)
    (newest / "state.msgpack").unlink()
    checkpoint.set_aside(tmp_path, before=latest(tmp_path).path)
    assert names(tmp_path) == ["000000000001", "000000000002", "000000000003.damaged"]
    save(tmp_path, 3, keep=2)
    save(tmp_path, 4, keep=2)
    assert names(tmp_path) == ["000000000003", "000000000003.damaged", "000000000004"]
    (tmp_path / "000000000004" / "state.msgpack").unlink()
    checkpoint.set_aside(tmp_path, before=latest(tmp_path).path)
    assert latest(tmp_path).version == 3
    save(tmp_path, 4)
    (tmp_path / "000000000004" / "state.msgpack").unlink()
    checkpoint.set_aside(tmp_path, before=latest(tmp_path).path)
    assert "000000000004.damaged+" in names(tmp_path)


def test_where_nothing_can_be_renamed_the_damaged_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, 1)
    (save(tmp_path, 2) / "state.msgpack").unlink()
    found = latest(tmp_path)
    caplog.clear()
    monkeypatch.setattr(Path, "rename", refuse_everything)
    checkpoint.set_aside(tmp_path, before=found.path)
    assert "stay where they are" in caplog.text and caplog.text.count("\n") == 1
    assert latest(tmp_path).version == 1


def refuse_everything(*_: Any, **__: Any) -> Any:
    raise OSError(errno.EROFS, "Read-only file system")


def test_a_disk_that_takes_nothing_any_more_in_the_middle_of_a_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old one of the same version is aside already, and cannot be put back: it counts there."""
    save(tmp_path, 1, attempt=1)
    rename = Path.rename

    def once(path: Path, target: Path) -> Path:
        moved = rename(path, target)
        monkeypatch.setattr(Path, "rename", refuse_everything)
        return moved

    monkeypatch.setattr(Path, "rename", once)
    with pytest.raises(CheckpointError, match="Read-only file system"):
        save(tmp_path, 1, attempt=2)
    assert latest(tmp_path).state["attempt"] == 1


@pytest.mark.parametrize("loading", [True, False], ids=["load", "save"])
def test_a_folder_that_cannot_be_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loading: bool
) -> None:
    save(tmp_path, 1)
    monkeypatch.setattr(Path, "iterdir", refuse_everything)
    with pytest.raises(CheckpointError, match="Read-only file system"):
        latest(tmp_path) if loading else save(tmp_path, 2)


def test_what_cannot_be_listed_after_a_save_is_pruned_another_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for version in (1, 2):
        save(tmp_path, version, keep=2)
    monkeypatch.setattr(checkpoint, "_finished", refuse_everything)
    save(tmp_path, 3, keep=2)
    assert "could not be listed" in caplog.text
    monkeypatch.undo()
    save(tmp_path, 4, keep=2)
    assert names(tmp_path) == ["000000000003", "000000000004"]


def test_killed_while_an_old_one_is_removed_it_leaves_nothing_that_looks_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        """Nothing of ours runs after it."""

    def half(path: Path, ignore_errors: bool = False) -> None:  # noqa: ARG001
        first, *_ = sorted(path.iterdir()) if path.exists() else [None]
        if first is not None:
            first.unlink()
            raise Killed

    for version in range(3):
        save(tmp_path, version, keep=3)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(shutil, "rmtree", half)
        save(tmp_path, 3, keep=3)
    finished = [path for path in tmp_path.iterdir() if path.name.isdigit()]
    assert len(finished) == 3
    for path in finished:
        checkpoint.load(path)
    save(tmp_path, 4, keep=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"{version:012d}" for version in (2, 3, 4)
    ]


def test_an_old_one_that_cannot_be_removed_does_not_keep_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for version in (1, 2, 3, 4):
        save(tmp_path, version, keep=9)
    rmtree = shutil.rmtree

    def refuse(path: Path, **options: Any) -> None:
        if path.name == "000000000001.gone":
            refuse_everything()
        rmtree(path, **options)

    monkeypatch.setattr(shutil, "rmtree", refuse)
    save(tmp_path, 5, keep=2)
    assert names(tmp_path) == ["000000000001.gone", "000000000004", "000000000005"]
    assert "000000000001 could not be removed" in caplog.text


@contextmanager
def file_size_limit(limit: int) -> Iterator[None]:
    """The kernel refuses to let a file grow beyond this; Python ignores the signal."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_write_that_fails_half_way(tmp_path: Path) -> None:
    save(tmp_path, 1)
    with (
        file_size_limit(100),
        pytest.raises(CheckpointError, match=r"000000000002 could not be written.*too large"),
    ):
        save(tmp_path, 2, keep=2)
    assert names(tmp_path) == ["000000000001"]
    assert latest(tmp_path).version == 1


def test_a_line_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    """The history's: half a line would spoil the one that is written once there is room."""
    history = tmp_path / "history.jsonl"
    train_state.append(history, "a" * 60)
    with file_size_limit(100), pytest.raises(OSError, match="No space left on device"):
        train_state.append(history, "b" * 60)
    train_state.append(history, "c" * 60)
    assert history.read_text() == "a" * 60 + "\n" + "c" * 60 + "\n"


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("call", range(7))
def test_a_full_disk_at_every_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int, version: int
) -> None:
    """Five files, the folder, its parent: whichever fails, nothing that was there is lost."""
    save(tmp_path, 1)
    save(tmp_path, 2, attempt=1)
    calls = iter(range(100))

    def full(_: int) -> None:
        if next(calls) == call:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match="No space left on device") as raised:
        save(tmp_path, version, keep=2)
    assert "\n" not in str(raised.value)
    assert not list(tmp_path.glob("*.tmp"))
    assert checkpoint.load(tmp_path / f"{1:012d}").version == 1
    assert latest(tmp_path).version in (2, version)


def test_a_rename_that_fails_puts_the_old_one_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1, attempt=1)
    rename = Path.rename

    def refuse(path: Path, target: Path) -> Path:
        if path.suffix == ".tmp":
            raise OSError(errno.EIO, "Input/output error")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(CheckpointError, match="Input/output error"):
        save(tmp_path, 1, attempt=2)
    assert names(tmp_path) == ["000000000001"]
    assert latest(tmp_path).state["attempt"] == 1


def test_what_would_not_come_back_the_same_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        save(tmp_path, 1, pair=(1, 2))
    with pytest.raises(ValueError, match="map key"):
        save(tmp_path, 1, numbered={1: 2})
    with pytest.raises(ValueError, match="cannot name a file"):
        checkpoint.save(tmp_path, step_version=1, tensors={"../x": {}}, state={}, keep=2)
    assert names(tmp_path) == []


@pytest.mark.slow
def test_an_optimiser_continues_as_if_nothing_had_happened(tmp_path: Path) -> None:
    def fresh() -> tuple[torch.nn.Linear, torch.optim.Adam]:
        model = torch.nn.Linear(3, 2)
        groups: list[dict[str, Any]] = [
            {"params": [model.weight], "lr": 0.01},
            {"params": [model.bias]},
        ]
        return model, torch.optim.Adam(groups, lr=0.1, betas=(0.8, 0.95))

    def train(model: torch.nn.Linear, opt: torch.optim.Adam) -> None:
        for _ in range(3):
            opt.zero_grad()
            model(torch.rand(4, 3)).square().sum().backward()
            opt.step()

    model, opt = fresh()
    train(model, opt)
    opt.param_groups[0]["lr"] = 0.005
    tensors, meta = optimiser_state.state_of(opt)
    groups = {"model": model.state_dict(), "optimiser": tensors, "rng": train_state.rng_state()}
    path = checkpoint.save(tmp_path, step_version=1, tensors=groups, state={"opt": meta}, keep=2)
    train(model, opt)

    other, other_opt = fresh()
    found = checkpoint.load(path)
    other.load_state_dict(found.tensors["model"])
    optimiser_state.load_state(other_opt, found.tensors["optimiser"], found.state["opt"])
    train_state.restore_rng(found.tensors["rng"])
    assert other_opt.param_groups[0]["lr"] == 0.005
    assert other_opt.param_groups[0]["betas"] == (0.8, 0.95)
    train(other, other_opt)
    assert torch.equal(other.weight, model.weight) and torch.equal(other.bias, model.bias)
    # What was loaded is still what was saved: the optimiser works on its own copy.
    assert torch.equal(found.tensors["optimiser"]["0.step"], torch.tensor(3.0))
