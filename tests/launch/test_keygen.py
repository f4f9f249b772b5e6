"""headrace keygen: a folder of keys that grows and never changes what was handed out."""

import stat
from pathlib import Path

import pytest

from headrace.broker.security import keys
from headrace.launch import cli
from headrace.launch.config import keyring, run_file
from headrace.launch.process import runtime

Contents = dict[str, str]


def contents(folder: Path) -> Contents:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }


def made(folder: Path, *words: str) -> set[str]:
    """What appears, by `headrace keygen`; nothing else changes."""
    before = contents(folder) if folder.exists() else {}
    assert cli.main(["keygen", str(folder), *words]) == runtime.OK
    after = contents(folder)
    assert {name: after[name] for name in before} == before
    return set(after) - set(before)


ROLES = ("learner", "actor", "evaluator", "watcher")
PLAIN = {"broker.key", "broker.pub"} | {
    name for role in ROLES for name in (f"{role}.key", f"authorised/{role}.pub")
}


def test_a_new_folder_has_a_key_for_each_role(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    assert made(folder) == PLAIN
    assert made(folder) == set()
    broker = keys.read(folder / "broker.key", "broker")
    for role in ROLES:
        key = keys.read(folder / f"{role}.key", role)
        assert (key.role, key.name, key.broker) == (role, "", broker.public)
        public = (folder / "authorised" / f"{role}.pub").read_text()
        assert keys.parse_public(public, "f") == key.public


def test_secrets_are_for_their_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    made(folder, "--actor", "a")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.rglob("*"))}
    assert modes["keys"] == modes["authorised"] == 0o700
    assert {mode for name, mode in modes.items() if name.endswith(".key")} == {0o600}


def test_named_ones_take_the_place_of_the_role_s(tmp_path: Path) -> None:
    appeared = made(tmp_path / "keys", "--actor", "node7", "--actor", "node8")
    named = {f"actor-{name}.key" for name in ("node7", "node8")}
    named |= {f"authorised/actor-{name}.pub" for name in ("node7", "node8")}
    assert appeared == PLAIN - {"actor.key", "authorised/actor.pub"} | named


def test_a_folder_grows_by_what_is_named_only(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    made(folder)
    assert made(folder, "--actor", "node9") == {"actor-node9.key", "authorised/actor-node9.pub"}
    assert made(folder, "--actor", "node9", "--watcher", "ops") == {
        "watcher-ops.key",
        "authorised/watcher-ops.pub",
    }


@pytest.mark.parametrize("half", ["actor.key", "authorised/actor.pub"])
def test_what_was_taken_away_does_not_come_back(tmp_path: Path, half: str) -> None:
    """A key that was withdrawn must stay so; one that was handed out must keep its public half."""
    folder = tmp_path / "keys"
    made(folder)
    (folder / half).unlink()
    assert made(folder) == set()


def test_the_brokers_key_may_lie_elsewhere(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    made(folder)
    public = keys.read(folder / "broker.key", "broker").public
    (folder / "broker.key").unlink()
    made(folder, "--actor", "late")
    assert keys.read(folder / "actor-late.key", "actor").broker == public


def test_keys_for_a_broker_that_is_lost_are_not_mixed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "keys"
    made(folder)
    for name in ("broker.key", "broker.pub"):
        (folder / name).unlink()
    before = contents(folder)
    assert cli.main(["keygen", str(folder), "--actor", "late"]) == runtime.YOUR_INPUT
    assert "bring broker.pub back" in capsys.readouterr().err
    assert contents(folder) == before


@pytest.mark.parametrize("name", ["", "../x", "a/b", "-a", "a b", "x" * 65, "é"])
def test_a_name_that_is_no_file_name(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["keygen", str(tmp_path / "keys"), f"--actor={name}"]
    assert cli.main(words) == runtime.YOUR_INPUT
    assert "cannot name a key" in capsys.readouterr().err
    assert not (tmp_path / "keys").exists()


def test_a_place_that_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert cli.main(["keygen", str(tmp_path / "file")]) == runtime.YOUR_INPUT
    line = capsys.readouterr().err
    assert line.startswith("headrace: ")
    assert line.count("\n") == 1


def test_a_run_finds_the_key_of_each_role(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    made(folder, "--actor", "node7")
    sets = ["security.curve=true", f"security.keys={folder}"]
    run = run_file.load("cartpole", sets)
    found = keyring.key(run, "learner", None)
    assert found is not None
    assert found.role == "learner"
    given = keyring.key(run, "actor", folder / "actor-node7.key")
    assert given is not None
    assert given.name == "node7"
    with pytest.raises(keys.KeyFileError, match=rf"actor\.key: no such .* keygen {folder}"):
        keyring.key(run, "actor", None)
    with pytest.raises(keys.KeyFileError, match="the key of a watcher, and an actor needs"):
        keyring.key(run, "actor", folder / "watcher.key")
    assert keyring.key(run_file.load("cartpole"), "learner", None) is None
