"""`headrace doctor`: each check is made to fail, and says what to mend."""

import contextlib
import importlib.metadata
import os
import resource
import socket
import stat
import tempfile
import threading
import time
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from headrace.launch import cli, keygen
from headrace.launch.config import run_file
from headrace.launch.doctor import finding, machine, run, torch
from headrace.launch.doctor.finding import BAD, OK, WARN, Check, Finding, Subject
from headrace.launch.process import descriptors, runtime


def subject(*sets: str, **more: Any) -> Subject:
    return Subject(run_file.load("cartpole", sets), ("cartpole", *sets), **more)


def only(check: Check, about: Subject | None = None) -> Finding:
    (found,) = check(about or Subject())
    return found


def give(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


def fail(error: Exception) -> Callable[..., Any]:
    def raising(*_: Any, **__: Any) -> Any:
        raise error

    return raising


# ---- the machine --------------------------------------------------------------------------------


@pytest.mark.processes
def test_this_machine_is_sound() -> None:
    for check in (*machine.CHECKS, *run.CHECKS):
        for found in check(subject("broker.bind=tcp://127.0.0.1:*")):
            assert found.level in (OK, WARN), found
            assert found.words and "\n" not in found.words


def test_packages_that_are_missing_or_old(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ["numpy", "pyzmq>=26", "torch>=2.7; sys_platform == 'linux'", 'onnx>9; extra == "x"']
    monkeypatch.setattr(importlib.metadata, "requires", give(wanted))
    have = {"numpy": None, "pyzmq": "25.1.2", "torch": "2.10.0+cpu"}
    monkeypatch.setattr(machine, "_installed", have.get)
    found = only(machine.packages)
    assert found.level == BAD
    assert found.words == (
        "numpy is not installed; pyzmq is 25.1.2, at least 26 is needed: pip install -U headrace"
    )


@pytest.mark.parametrize(("curve", "level"), [("true", BAD), ("false", WARN)])
def test_no_encryption(monkeypatch: pytest.MonkeyPatch, curve: str, level: str) -> None:
    monkeypatch.setattr(zmq, "has", give(False))
    assert only(machine.curve, subject(f"security.curve={curve}")).level == level


def test_more_samplers_than_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "cores", give(2))
    monkeypatch.setattr(machine, "_quota", give(None))
    monkeypatch.setattr(os, "cpu_count", give(8))
    found = only(machine.cores, subject("actor.count=3"))
    assert found.level == WARN and found.words.startswith("2 of 8 by affinity; lower actor.count")
    assert only(machine.cores, subject("actor.count=2")).level == OK
    monkeypatch.setattr(machine, "_quota", give(1.5))
    assert "held down to 1.5" in only(machine.cores, subject("actor.count=2")).words


def test_a_control_groups_share(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert machine._quota(tmp_path / "cpu.max") == 1.5
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert machine._quota(tmp_path / "cpu.max") is None
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:  2097152 kB\n")
    assert machine._free_mb(tmp_path / "meminfo", tmp_path) == 2048
    (tmp_path / "memory.max").write_text(str(600 * 2**20))
    (tmp_path / "memory.current").write_text(str(500 * 2**20))
    assert machine._free_mb(tmp_path / "meminfo", tmp_path) == 100
    assert machine._free_mb(tmp_path / "none", tmp_path) is None


def test_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_free_mb", give(900.0))
    found = only(machine.memory, subject("broker.queue_mb=512", "actor.count=2"))
    assert found == (
        WARN,
        "memory",
        "900 MB free, about 1,412 needed; lower broker.queue_mb or actor.count",
    )
    monkeypatch.setattr(machine, "_free_mb", give(None))
    assert only(machine.memory).level == WARN


def test_no_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_free_disk_mb", give(64.0))
    found = only(machine.shared_memory)
    assert found.level == WARN and "docker run --shm-size=1g" in found.words
    monkeypatch.setattr(os, "memfd_create", fail(OSError(38, "Function not implemented")))
    found = only(machine.shared_memory)
    assert found.level == BAD and "set actor.stepping" in found.words


def test_few_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", give((1024, 4096)))
    found = only(machine.descriptors, subject("broker.peers=5000"))
    assert found.level == WARN and "5,000 need 12064: ulimit -n 12064" in found.words
    assert only(machine.descriptors, subject("broker.peers=1600")).level == OK
    assert only(machine.descriptors, subject()).level == OK  # nobody asked for that many
    monkeypatch.setattr(resource, "getrlimit", give((60, 60)))
    assert only(machine.descriptors, subject()).level == BAD
    assert descriptors.fitting_peers() == 0


def test_a_disk_that_is_full_or_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (here, _) = machine.disk(subject())
    assert here[:2] == (OK, "disk") and str(tmp_path) in here.words
    assert list(tmp_path.iterdir()) == []
    for room, level in ((90.0, BAD), (500.0, WARN), (5000.0, OK)):
        monkeypatch.setattr(machine, "_free_disk_mb", give(room))
        assert next(iter(machine.disk(subject()))).level == level
    error = OSError(30, "Read-only file system")
    monkeypatch.setattr(tempfile, "TemporaryFile", fail(error))
    here, temporary = machine.disk(subject())
    assert (here.level, temporary.level) == (BAD, BAD)
    assert here.words == f"{tmp_path}: Read-only file system; choose another folder with --out"
    assert temporary.words.endswith("Read-only file system; set TMPDIR")


# ---- torch --------------------------------------------------------------------------------------

NO_GPU: dict[str, Any] = {
    "version": "2.9.0",
    "cuda": None,
    "usable": False,
    "names": [],
    "said": [],
}


@pytest.mark.parametrize(
    ("facts", "wanted", "driver", "level", "words"),
    [
        ({}, False, False, OK, "no GPU here"),
        ({}, True, False, BAD, 'set learner.device = "auto" or "cpu"'),
        ({}, False, True, WARN, "install a CUDA build"),
        ({}, True, True, BAD, "install a CUDA build"),
        ({"cuda": "12.8", "said": ["the driver is too old"]}, False, True, WARN, "is too old"),
        ({"cuda": "12.8"}, True, True, BAD, "no device is visible"),
        ({"cuda": "12.8", "names": ["H", "H"]}, True, True, OK, "CUDA 12.8: 2 H"),
    ],
)
def test_torch_and_the_driver(
    facts: dict[str, Any], wanted: bool, driver: bool, level: str, words: str
) -> None:
    found = torch.torch_finding({**NO_GPU, **facts}, wanted=wanted, driver=driver)
    assert found.level == level and words in found.words


@pytest.mark.processes
def test_a_torch_that_crashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "_LOOK", "raise ImportError('libcudart.so.12: cannot open')")
    found = only(torch.torch)
    assert found.level == BAD and "libcudart.so.12: cannot open" in found.words
    monkeypatch.setattr(torch, "_LOOK", "import os; os.abort()")
    assert only(torch.torch).level == BAD


@pytest.mark.processes
def test_what_hangs_is_ended_with_all_that_it_started() -> None:
    script = "import subprocess, time; subprocess.Popen(['sleep', '98.7']); time.sleep(60)"
    with pytest.raises(finding.SlowError):
        finding.run_program("-c", script, seconds=1.0)
    deadline = time.monotonic() + 10.0
    while b"sleep\x0098.7\x00" in _commands():  # killed, but a busy kernel takes its time
        assert time.monotonic() < deadline


def _commands() -> list[bytes]:
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # it ended meanwhile
            found.append((entry / "cmdline").read_bytes())
    return found


def test_a_check_that_hangs_or_fails_is_a_finding() -> None:
    gate = threading.Event()

    def sleeping_dog(_: Subject) -> Iterator[Finding]:
        gate.wait(60)
        yield Finding(OK, "dog", "awake")

    def broken_cup(_: Subject) -> Iterator[Finding]:
        yield Finding(OK, "cup", "whole")
        raise KeyError("handle")

    assert finding.run_check(sleeping_dog, Subject(), 0.05) == [
        (BAD, "sleeping dog", "no answer within 0.05 s")
    ]
    gate.set()
    whole, broken = finding.run_check(broken_cup, Subject(), 5.0)
    assert whole.level == OK
    assert broken == (BAD, "broken cup", "cannot be checked: KeyError: 'handle'")


# ---- the run ------------------------------------------------------------------------------------


@pytest.mark.processes
def test_an_environment_that_cannot_be_made() -> None:
    found = only(run.environment, subject("env.id=Nowhere-v3"))
    assert found.level == BAD and "Nowhere" in found.words and "\n" not in found.words


@pytest.mark.processes
def test_an_environment_that_can() -> None:
    found = only(run.environment, subject())
    assert found.level == OK and "float32[4]" in found.words


def test_keys_that_do_nothing() -> None:
    found = only(run.keys_that_do_nothing, subject("algorithm.epochs=9"))
    assert found.level == WARN and "algorithm.epochs" in found.words


def test_a_port_that_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        bind = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        first, _ = run.addresses(subject(f"broker.bind={bind}"))
        assert first.level == BAD and "Address already in use; stop what listens" in first.words
        first, _ = run.addresses(subject(f"broker.bind={bind}", broker=bind))
        assert first.level == OK and "is in use, by that broker" in first.words
    first, _ = run.addresses(subject(f"broker.bind={bind}"))
    assert first.level == OK


def test_addresses_that_cannot_be_used(tmp_path: Path) -> None:
    found = only(run.addresses, subject("broker.bind=tcp://0.0.0.0:5755"))
    assert found.level == BAD and "--insecure" in found.words
    first, _ = run.addresses(subject("broker.bind=tcp://192.0.2.1:5755", "security.curve=true"))
    assert first.level == BAD and "Cannot assign requested address" in first.words
    assert only(run.addresses, subject("broker.bind=nonsense")).level == BAD
    first, _ = run.addresses(subject(f"broker.bind=ipc://{tmp_path}/none/b"))
    assert first.level == BAD and "nobody may write into" in first.words


def test_keys(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    about = subject("security.curve=true", f"security.keys={folder}")
    found = only(run.key_folder, about)
    assert found.level == BAD and f"headrace keygen {folder}" in found.words
    keygen.generate(folder, {"actor": ["node7"]})
    fits, known = run.key_folder(about)
    assert (fits.level, known.level) == (OK, OK)
    assert "actor:node7" in known.words

    (folder / "authorised" / "stranger.pub").write_text("x")
    odd = [found for found in run.key_folder(about) if found.level == WARN]
    assert len(odd) == 1 and "stranger.pub" in odd[0].words
    for path in (folder / "authorised").iterdir():
        path.unlink()
    assert "holds no key" in list(run.key_folder(about))[-1].words

    folder.chmod(0o777)
    assert next(iter(run.key_folder(about))).words.startswith("others can write into")
    folder.chmod(0o700)
    (folder / "broker.key").chmod(0o644)
    assert "chmod 600" in next(iter(run.key_folder(about))).words


def test_a_pair_that_does_not_fit(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    for folder in (mine, other):
        keygen.generate(folder, {})
    about = subject("security.curve=true", f"security.keys={mine}")
    (mine / "broker.pub").write_bytes((other / "broker.pub").read_bytes())
    found = next(iter(run.key_folder(about)))
    assert found.level == BAD and "is not the public half of" in found.words
    (mine / "broker.pub").unlink()
    (mine / "actor.key").write_bytes((other / "actor.key").read_bytes())
    found = next(iter(run.key_folder(about)))
    assert found.level == BAD and "actor.key is for another broker" in found.words


def test_the_key_that_was_given(tmp_path: Path) -> None:
    assert list(run.key(Subject())) == []
    keygen.generate(tmp_path, {})
    assert only(run.key, Subject(key=tmp_path / "actor.key")).level == OK
    (tmp_path / "actor.key").chmod(stat.S_IRUSR | stat.S_IROTH)
    assert "others can read" in only(run.key, Subject(key=tmp_path / "actor.key")).words
    assert only(run.key, Subject(key=tmp_path / "none.key")).level == BAD


# ---- the command --------------------------------------------------------------------------------

Ran = namedtuple("Ran", "status lines")


def doctor(capsys: pytest.CaptureFixture[str], *words: str) -> Ran:
    status = cli.main(["doctor", *words])
    return Ran(status, capsys.readouterr().out.splitlines())


@pytest.mark.processes
def test_the_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    done = doctor(capsys, "--run", "cartpole", "--set", "broker.bind=tcp://127.0.0.1:*")
    assert done.status == 0, done.lines
    assert done.lines[-1].endswith(" to think about") and " 0 bad" in done.lines[-1]
    assert {line.split()[0] for line in done.lines[:-1]} <= {OK, WARN}
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_cannot_be_loaded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.launch.doctor import doctor as command

    monkeypatch.setattr(command, "_CHECKS", ())
    done = doctor(capsys, "--run", "cartpole", "--set", "learner.lrr=1")
    assert done.status == 1
    assert done.lines[0].startswith("bad   run ") and "did you mean" in done.lines[0]
