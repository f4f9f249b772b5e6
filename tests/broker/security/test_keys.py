"""Key files: what is written is read back, and what is wrong with one is a line that says so."""

import os
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.security import keys
from headrace.broker.security.authorised import REFRESH_EVERY_S, Authorised
from headrace.broker.security.keys import Key, KeyFileError

BROKER = keys.make("broker")
NODE = keys.make("actor", "node7", BROKER.public)
OTHER = keys.make("actor", "node8", BROKER.public)


def secret(text: str, role: str = "actor") -> Key:
    return keys.parse(text, "f.key", role)


def said(text: str, role: str = "actor") -> str:
    with pytest.raises(KeyFileError) as error:
        secret(text, role)
    line = str(error.value)
    assert "\n" not in line
    assert "f.key" in line
    return line


class TestFiles:
    def test_what_is_written_is_read_back(self) -> None:
        assert secret(keys.text(NODE)) == NODE._replace(path="f.key")
        assert secret(keys.text(BROKER), "broker") == BROKER._replace(path="f.key")
        assert keys.parse_public(keys.public_text(NODE.public), "f.pub") == NODE.public

    def test_the_broker_has_no_other_brokers_key(self) -> None:
        assert "broker =" not in keys.text(BROKER)
        assert BROKER.broker == BROKER.public

    def test_the_secret_is_not_in_what_a_traceback_would_show(self) -> None:
        assert NODE.secret not in f"{NODE} {NODE!r} {[NODE]}"

    @pytest.mark.parametrize("half", ["public", "secret", "broker"])
    @pytest.mark.parametrize("length", [0, 39, 41, 80])
    def test_a_wrong_length_is_said(self, half: str, length: int) -> None:
        wrong = getattr(NODE, half) * 2
        text = keys.text(NODE).replace(getattr(NODE, half), wrong[:length])
        assert f"{half} has {length} characters; a key has 40" in said(text)

    def test_what_is_no_z85_is_said(self) -> None:
        for wrong in ("é" * 40, "#" * 40, "~" * 40):
            assert "is no Z85" in said(keys.text(NODE).replace(NODE.public, wrong))

    def test_halves_that_do_not_belong_together_are_said(self) -> None:
        text = keys.text(NODE).replace(NODE.public, OTHER.public)
        assert "public does not belong to secret" in said(text)

    def test_another_role_is_said_with_both_roles(self) -> None:
        line = said(keys.text(NODE), "learner")
        assert "the key of an actor" in line
        assert "a learner needs" in line

    def test_a_role_that_there_is_not(self) -> None:
        assert "'king' is no role" in said(keys.text(NODE).replace('"actor"', '"king"'))

    def test_a_public_file_is_no_secret_one(self) -> None:
        assert "only the public half" in said(keys.public_text(NODE.public))

    def test_a_secret_where_a_public_one_belongs(self) -> None:
        with pytest.raises(KeyFileError, match="holds a secret key where a public one belongs"):
            keys.parse_public(keys.text(NODE), "f.pub")

    @pytest.mark.parametrize(
        "text", ["", "name = 3", "public = [", 'king = "x"', "[public]", "a=" + "[" * 4000]
    )
    def test_what_is_no_key_file(self, text: str) -> None:
        said(text)
        with pytest.raises(KeyFileError):
            keys.parse_public(text, "f.pub")

    @given(st.text(max_size=200))
    def test_any_text_is_a_key_or_one_line(self, text: str) -> None:
        for read in (secret, lambda text: keys.parse_public(text, "f.pub")):
            try:
                read(text)
            except KeyFileError:
                continue

    @given(st.text(max_size=80))
    def test_any_file_name_is_somebodys_or_one_line(self, name: str) -> None:
        try:
            role, own = keys.owner(f"{name}.pub", "f")
        except KeyFileError:
            return
        assert keys.stem(role, own) == name

    def test_the_file_name_says_who_it_is(self) -> None:
        assert keys.owner("actor-node7.pub", "f") == ("actor", "node7")
        assert keys.owner("actor-a-b.pub", "f") == ("actor", "a-b")
        assert keys.owner("learner.pub", "f") == ("learner", "")
        for nobody in ("broker.pub", "king.pub", "actor-.pub", "actors.pub", "actor- .pub"):
            with pytest.raises(KeyFileError, match="the name says nobody"):
                keys.owner(nobody, "f")


class TestReading:
    def read(self, path: Path, mode: int = 0o600) -> Key:
        path.write_text(keys.text(NODE))
        path.chmod(mode)
        return keys.read(path, "actor")

    def test_only_its_owner_may_read_it(self, tmp_path: Path) -> None:
        path = tmp_path / "a.key"
        assert self.read(path).path == str(path)
        assert self.read(path, 0o400) == self.read(path)
        for mode in (0o640, 0o604, 0o660, 0o644, 0o610):
            with pytest.raises(KeyFileError, match=f"others can read .* chmod 600 {path}"):
                self.read(path, mode)

    def test_systemd_hands_it_over_readable_for_its_group(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
        assert self.read(tmp_path / "key", 0o440)
        with pytest.raises(KeyFileError, match="others can read"):
            self.read(tmp_path / "key", 0o444)
        monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path / "elsewhere"))
        with pytest.raises(KeyFileError, match="others can read"):
            self.read(tmp_path / "key", 0o440)

    def test_one_that_is_not_there_says_how_to_make_it(self, tmp_path: Path) -> None:
        with pytest.raises(KeyFileError, match=f"no such key file.* headrace keygen {tmp_path}"):
            keys.read(tmp_path / "actor.key", "actor")

    @pytest.mark.parametrize("content", [b"x" * 5000, b"\xff\xfe", b"\0" * 4097])
    def test_what_is_no_text_or_too_long(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "a.key"
        path.write_bytes(content)
        path.chmod(0o600)
        with pytest.raises(KeyFileError, match="no key file"):
            keys.read(path, "actor")

    def test_a_folder_is_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(KeyFileError):
            keys.read(tmp_path, "actor")


class Folder:
    """Authorised keys, with a clock that goes when it is told to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.path.mkdir(mode=0o700)
        self.now = 0.0
        self.looks = 0
        self.put("learner", keys.make("learner"))
        self.put("actor-node7", NODE)
        self.authorised = Authorised(path, lambda: self.now)

    def put(self, stem: str, key: Key) -> None:
        temporary = self.path / ".new"
        temporary.write_text(keys.public_text(key.public))
        temporary.rename(self.path / f"{stem}.pub")

    def user(self, key: Key) -> str | None:
        return self.authorised.user(keys.raw(key.public))

    def later(self, seconds: float = 2 * REFRESH_EVERY_S) -> None:
        self.now += seconds


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "authorised")


class TestAuthorised:
    def test_a_key_is_its_file_s(self, folder: Folder) -> None:
        assert folder.user(NODE) == "actor:node7"
        assert folder.user(OTHER) is None
        assert folder.authorised.has("actor:node7")
        assert folder.authorised.has("learner:")
        assert not folder.authorised.has("actor:node8")
        assert not folder.authorised.has("")

    def test_a_deleted_one_is_withdrawn_within_a_second(self, folder: Folder) -> None:
        assert folder.user(NODE)
        (folder.path / "actor-node7.pub").unlink()
        folder.later(1.0)
        assert folder.user(NODE) is None
        assert not folder.authorised.has("actor:node7")
        assert folder.authorised.has("learner:")
        assert folder.authorised.withdrawn[keys.raw(NODE.public)] == "actor:node7"

    def test_a_new_one_counts_at_once(self, folder: Folder) -> None:
        assert folder.user(OTHER) is None
        folder.put("actor-node8", OTHER)
        folder.later(0.1)
        assert folder.user(OTHER) == "actor:node8"

    def test_one_that_was_withdrawn_may_come_back(self, folder: Folder) -> None:
        for _ in range(2):
            folder.put("actor-node7", NODE)
            folder.later()
            assert folder.user(NODE) == "actor:node7"
            (folder.path / "actor-node7.pub").unlink()
            folder.later()
            assert folder.user(NODE) is None

    def test_another_key_under_the_same_name_takes_its_place(self, folder: Folder) -> None:
        folder.put("actor-node7", OTHER)
        folder.later()
        assert (folder.user(NODE), folder.user(OTHER)) == (None, "actor:node7")

    def test_without_the_folder_nobody_new_comes_in_and_nobody_is_thrown_out(
        self, folder: Folder, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert folder.user(NODE)
        gone = folder.path.with_name("gone")
        folder.path.rename(gone)
        for _ in range(5):
            folder.later()
            assert folder.authorised.has("actor:node7")
            assert "cannot be read" in folder.authorised.problem
        gone.rename(folder.path)
        folder.later()
        assert folder.user(NODE)
        assert not folder.authorised.problem
        lines = [record.message for record in caplog.records]
        assert len([line for line in lines if "until it can be read nobody new" in line]) == 1
        assert len([line for line in lines if "can be read again" in line]) == 1

    def test_a_key_that_two_files_name_is_nobody_s(self, folder: Folder) -> None:
        folder.put("learner-too", NODE)
        folder.later()
        assert folder.user(NODE) is None

    @pytest.mark.parametrize(
        ("name", "content", "mode", "words"),
        [
            ("actor-x.pub", keys.text(OTHER), 0o600, "a secret key where a public one belongs"),
            ("actor-x.pub", 'public = "short"', 0o644, "has 5 characters"),
            ("actor-x.pub", "", 0o644, "public is missing"),
            ("actor-x.pub", keys.public_text(OTHER.public), 0o666, "others can write into it"),
            ("king.pub", keys.public_text(OTHER.public), 0o644, "the name says nobody"),
            ("broker.pub", keys.public_text(OTHER.public), 0o644, "the name says nobody"),
        ],
    )
    def test_a_wrong_file_is_named_once_and_the_others_count(
        self,
        folder: Folder,
        caplog: pytest.LogCaptureFixture,
        name: str,
        content: str,
        mode: int,
        words: str,
    ) -> None:
        (folder.path / name).write_text(content)
        (folder.path / name).chmod(mode)
        for _ in range(4):
            folder.later()
            assert folder.user(NODE) == "actor:node7"
            assert folder.user(OTHER) is None
        lines = [record.message for record in caplog.records if words in record.message]
        assert len(lines) == 1
        assert name in lines[0]

    def test_a_folder_that_others_write_into_lets_nobody_in(self, folder: Folder) -> None:
        folder.path.chmod(0o777)
        folder.authorised.refresh()
        assert f"chmod go-w {folder.path}" in folder.authorised.problem

    def test_it_looks_seldom(self, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
        looks, real = mock.Mock(), os.scandir
        monkeypatch.setattr(os, "scandir", lambda path: looks(path) and real(path))
        for _ in range(1000):
            folder.later(0.001)
            folder.user(NODE)
            folder.user(OTHER)
            folder.authorised.has("actor:node7")
        assert 1 <= looks.call_count <= 1 / 0.05 + 1
