"""Checkpoints under a full disk, kill -9, truncation and flipped bits, with figures."""

import json
import logging
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from headrace.broker.weights.blobs import Blob
from headrace.launch.config import run_file
from headrace.launch.roles.evaluation.evaluation_results import EvaluationResults
from headrace.learner.checkpoints import checkpoint
from headrace.learner.models.build import build
from headrace.learner.spaces import Leaf, Spaces, discrete
from headrace.learner.weights import FlatWeights, layout_digest
from tests.learner import test_train
from tests.system.conftest import Place, until
from tests.system.harness import calls, disks
from tests.system.harness.figures import pick, say

ROOT = Path(__file__).resolve().parents[3]

# Forks a writer that saves version after version, kills it at a random moment, reads; many times.
KILLER = """
import os, random, signal, sys, time
from pathlib import Path
import torch
from headrace.learner.checkpoints import checkpoint

torch.set_num_threads(1)
folder, rng, before = Path(sys.argv[1]), random.Random(0), 0
tensors = {"model": {"weights": torch.zeros(100_000)}}
for _ in range(int(sys.argv[2])):
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        version = before
        while True:
            version += 1
            tensors["model"]["weights"].fill_(version)
            checkpoint.save(
                folder, step_version=version, tensors=tensors, state={"v": version}, keep=2
            )
            if version == before + 1:
                os.write(tell, b"!")
    os.read(told, 1)  # one is safe: from here on every moment may be the last
    time.sleep(rng.uniform(0.0, 0.03))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(told), os.close(tell)
    found = checkpoint.load_latest(folder)
    assert found and found.version > before, (found, before)
    assert found.state == {"v": found.version}
    assert bool((found.tensors["model"]["weights"] == found.version).all())
    before = found.version
print(before)
"""


def script(*arguments: str) -> str:
    """What it prints; it says nothing else, and no checkpoint was damaged."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "damaged" not in done.stderr
    return done.stdout


@pytest.fixture
def quick() -> Iterator[Path]:
    """A folder in memory, where a sync costs nothing."""
    memory = Path("/dev/shm")
    parent = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="hr-", dir=parent) as folder:
        yield Path(folder)


def test_a_kill_or_an_error_at_every_system_call_of_a_save(quick: Path) -> None:
    """A process that saves is killed before each of its calls on files in turn; then each of them
    fails; then each of them and all that follow."""
    if not calls.possible():
        pytest.skip("needs Linux on x86_64")
    began = time.monotonic()
    figures = json.loads(script("-m", "tests.system.faults.saves", str(quick), str(pick(6, 1))))
    assert figures["killed"] > 10 and figures["refused"] > 10
    say("checkpoint, every system call", **figures, lost=0, seconds=time.monotonic() - began)


def test_kill_minus_nine_while_writing(tmp_path: Path) -> None:
    """A process that saves without pause is killed at random moments."""
    began, kills = time.monotonic(), pick(15, 200)
    versions = int(script("-c", KILLER, str(tmp_path), str(kills)))
    say(
        "checkpoint, kill -9",
        faults=kills,
        saved=versions,
        lost=0,
        seconds=time.monotonic() - began,
    )


TENSORS = {"model": {"w": torch.arange(2_000.0)}, "optimiser": {"m": torch.arange(4_000.0)}}


def save(folder: Path, version: int) -> None:
    checkpoint.save(folder, step_version=version, tensors=TENSORS, state={"v": version}, keep=2)


def whole(folder: Path) -> int:
    found = checkpoint.load_latest(folder)
    assert found is not None and found.state == {"v": found.version}
    assert all(
        torch.equal(found.tensors[group][name], tensor)
        for group, named in TENSORS.items()
        for name, tensor in named.items()
    )
    return found.version


def test_full_disk(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A small disk is filled but for a little room, a little more each time, and a save is tried:
    the old state loads; with room again the next save succeeds."""
    began, times = time.monotonic(), pick(20, 100)
    refused = 0
    with disks.disk(tmp_path / "disk", 256) as disk:
        folder = disk / "checkpoints"
        save(folder, 1)
        for turn in range(times):
            before = whole(folder)
            # Two checkpoints of 28 kB lie there; a third one fits only in the last rounds.
            ballast = disks.fill(disk, leave=4096 * (turn * 11 // times))
            try:
                save(folder, before + 1)
            except checkpoint.CheckpointError as error:
                assert "No space left on device" in str(error) and "\n" not in str(error)
                refused += 1
                assert whole(folder) == before
                assert not list(folder.glob("*.tmp"))
            else:
                assert whole(folder) == before + 1
            ballast.unlink()
            save(folder, before + 2)
            assert whole(folder) == before + 2
    assert refused > times / 2
    assert not caplog.records, "a full disk is no damage"
    say(
        "checkpoint, full disk",
        faults=refused,
        saves=2 * times - refused,
        lost=0,
        seconds=time.monotonic() - began,
    )


def test_full_quota(tmp_path: Path) -> None:
    """The same where nothing can be mounted: the kernel lets no file grow beyond a limit."""
    save(tmp_path, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in range(0, 16_000, 700):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            with pytest.raises(checkpoint.CheckpointError, match="too large"):
                save(tmp_path, 2)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert whole(tmp_path) == 1


def test_damage_is_found_and_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a learner's own checkpoints the newest is truncated or has a bit flipped, in each file in
    turn: the one before is used, one line says why, and training goes on from it."""
    caplog.set_level(logging.WARNING)
    began, times, rng = time.monotonic(), pick(24, 400), random.Random(7)
    torch.set_num_threads(1)
    original = tmp_path / "original"
    for resume in (None, True):
        start = None if resume is None else test_train.latest(original)
        test_train.learn(original, 2, resume=start)
    older, newest = sorted((original / "checkpoints").iterdir())
    whole_files = {path.name: path.read_bytes() for path in newest.iterdir()}
    names = sorted(whole_files)
    for turn in range(times):
        out = tmp_path / "out"
        shutil.copytree(original, out)
        name = names[turn // 2 % len(names)]
        body = bytearray(whole_files[name])
        at = rng.randrange(len(body))
        if turn % 2:
            del body[at:]
        else:
            body[at] ^= 1 << rng.randrange(8)
        (out / "checkpoints" / newest.name / name).write_bytes(body)
        caplog.clear()
        found = test_train.latest(out)
        assert found.path.name == older.name, f"{name} at {at}"
        (said,) = caplog.messages
        assert newest.name in said and "is damaged: " in said and "\n" not in said
        pieces, _ = test_train.learn(out, 1, resume=found)
        assert pieces.progress.version == found.version + 1
        after = test_train.latest(out)
        assert after.version > found.version and after.path.name != older.name
        assert (out / "checkpoints" / f"{newest.name}.damaged").is_dir()
        shutil.rmtree(out)
    say(
        "checkpoint, damage",
        faults=times,
        detected=times,
        trained=times,
        lost=0,
        seconds=time.monotonic() - began,
    )


@contextmanager
def somebody_else() -> Iterator[None]:
    """Not root for a moment, who may read everything."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


def test_a_file_with_wrong_permissions() -> None:
    """The newest may not be read, then the whole folder: the older one is used, then a line."""
    with tempfile.TemporaryDirectory(prefix="hr-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        save(folder, 1)
        save(folder, 2)
        (folder / f"{2:012d}" / "model.safetensors").chmod(0)
        with somebody_else():
            assert whole(folder) == 1
        folder.chmod(0)
        with (
            somebody_else(),
            pytest.raises(checkpoint.CheckpointError, match="Permission denied") as raised,
        ):
            checkpoint.load_latest(folder)
        assert "\n" not in str(raised.value)
        folder.chmod(0o755)
        with somebody_else(), pytest.raises(checkpoint.CheckpointError, match="Permission denied"):
            save(folder, 3)


# ---- a learner and its folder -------------------------------------------------------------------


def started(place: Place) -> None:
    """A broker and a sampler."""
    place.broker()
    place.actor()


def lines_with(text: str, *words: str) -> list[str]:
    return [line for line in text.splitlines() if all(word in line for word in words)]


def test_a_second_learner_and_a_damaged_newest(place: Place) -> None:
    """Two learners in one folder: the second is refused with a line that names the first. Then the
    first is killed, its newest checkpoint is damaged, and a newer one is half there: another one
    resumes from the last good one, trains, and saves."""
    started(place)
    first = place.learner()
    until(lambda: len(place.checkpoints()) >= 2, "two checkpoints")
    second = place.learner("--resume")
    assert second.ends() == 2
    (refused,) = lines_with(second.text(), " ERROR ")
    assert f"is in use: another learner-0 (process {first.pid} on" in refused
    place.trains(5)
    first.kill()
    *_, older, newest = place.checkpoints()
    (newest / "optimiser.safetensors").write_bytes(b"")
    half = newest.with_name(f"{int(newest.name) + 5:012d}.tmp")
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"half")
    third = place.learner("--resume")
    third.says(f"continues from .*{older.name}")
    place.trains(20)
    until(lambda: place.checkpoints()[-1] > newest, "a newer checkpoint")
    assert third.term() == 0
    (said,) = lines_with(third.text(), "is damaged: ")
    assert newest.name in said and "optimiser.safetensors has 0 bytes" in said
    assert not half.exists()
    assert newest.with_name(f"{newest.name}.damaged").is_dir()
    assert checkpoint.load(place.checkpoints()[-1])


def test_when_all_are_damaged_nothing_is_deleted_and_a_line_says_so(place: Place) -> None:
    """Every checkpoint of a run is damaged: learner and train say one line each, status 2."""
    for version in (4, 9):
        folder = place.out / "checkpoints"
        path = checkpoint.save(folder, step_version=version, tensors={}, state={}, keep=2)
        (path / "manifest.json").write_text("{")
    before = sorted(folder.rglob("*"))
    learner = place.learner("--resume")
    assert learner.ends() == 2
    (said,) = lines_with(learner.text(), " ERROR ")
    assert "all are damaged" in said and "move the folder away" in said
    again = place.train("--resume", "--quiet")
    assert again.ends() == 2
    assert len(lines_with(again.text(), "all are damaged")) == 1
    assert "starting it again" not in again.text() and "Traceback" not in again.text()
    assert sorted(folder.rglob("*")) == before


def test_a_run_in_a_folder_where_another_trains(place: Place) -> None:
    """A second `headrace train` in the folder changes nothing there, with --resume or without."""
    first = place.train("--quiet")
    until(place.history, "history")
    run_toml = (place.out / "run.toml").stat().st_mtime_ns
    until(place.checkpoints, "a checkpoint")
    second = place.train("--quiet", "--set", "run.seed=5", "--resume")
    assert second.ends() == 2
    (said,) = second.lines()
    assert f"is in use: another train (process {first.pid} on" in said
    assert (place.out / "run.toml").stat().st_mtime_ns == run_toml
    place.trains(5)
    assert first.term() == 3
    assert place.summary()["unaccounted"] == 0
    assert place.account().untrue == 0


def test_a_folder_that_nobody_may_write_into(place: Place) -> None:
    """A disk that is mounted read-only: one line, status 2."""
    with disks.disk(place.folder / "disk", 64) as disk:
        disks.remount(disk, "ro")
        place.out = disk / "out"
        learner = place.learner()
        assert learner.ends() == 2
        (said,) = lines_with(learner.text(), " ERROR ")
        assert "Read-only file system; choose another folder with --out" in said


def test_a_folder_that_is_deleted_while_it_trains(place: Place) -> None:
    """A file takes the place of the checkpoints; later the whole folder is deleted. The learner
    trains on, and the next checkpoint after each is whole."""
    place.ledger = place.folder / "ledger"
    started(place)
    learner = place.learner()
    folder = place.out / "checkpoints"
    until(place.checkpoints, "a checkpoint")
    before = place.checkpoints()[-1]
    folder.rename(place.out / "elsewhere")
    folder.write_text("no folder")
    learner.says("checkpoint .* could not be written")
    place.trains(20)
    folder.unlink()
    until(lambda: place.checkpoints() and place.checkpoints()[-1] > before, "one more")
    place.out.rename(place.folder / "trash")
    place.trains(20)
    until(place.checkpoints, "a checkpoint in a new folder")
    assert learner.term() == 0, learner.text()
    assert "Traceback" not in learner.text()
    found = checkpoint.load_latest(folder)
    assert found is not None and found.path == place.checkpoints()[-1]


def test_damage_in_an_evaluators_best(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The newest of best/ is damaged, then all: the evaluator goes on from the older one, then
    from nothing, says so in a line, and keeps the next one."""
    run = run_file.load("cartpole")
    spaces = Spaces((Leaf("obs", "<f4", (4,)),), discrete(2))
    model = build(run.model, spaces, seed=0)

    def add(version: int, mean: float) -> None:
        keep = EvaluationResults(tmp_path, run, spaces)
        blob = Blob.of(version, layout_digest(model), FlatWeights(model).dump())
        keep.add(blob, {"t": 0.0, "mean": mean})

    def best() -> list[int]:
        return sorted(int(path.name) for path in (tmp_path / "best").iterdir())

    add(1, 10.0)
    add(2, 20.0)
    assert best() == [1, 2]
    torn = tmp_path / "best" / f"{2:012d}" / "model.safetensors"
    torn.write_bytes(torn.read_bytes()[:-1])
    caplog.clear()
    add(3, 15.0)  # less than the one that is lost, more than the one that is left
    assert best() == [1, 2, 3]  # what cannot be read is not removed, and takes no good one's place
    (said,) = caplog.messages
    assert "is damaged: model.safetensors has " in said
    for path in (tmp_path / "best").iterdir():
        (path / "state.msgpack").unlink()
    caplog.clear()
    add(4, 1.0)
    assert sum("all are damaged" in line for line in caplog.messages) == 1
    found = checkpoint.load_latest(tmp_path / "best")
    assert found is not None and found.version == 4
