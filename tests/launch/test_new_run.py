"""`headrace new`: the file it writes is a run, also with what it only suggests."""

import re
from pathlib import Path

import pytest

from headrace.launch import cli, new_run
from headrace.launch.config import run_file


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_file_says_what_the_environment_is_and_trains_it() -> None:
    assert cli.main(["new", "Acrobot-v1", "--algorithm", "appo"]) == 0
    text = Path("acrobot.toml").read_text()
    assert "# Acrobot-v1: observation obs float32[6]; action choice of 3. At most 500 steps" in text
    run = run_file.load("acrobot.toml")
    assert (run.run.name, run.env.id, run.algorithm.name) == ("acrobot", "Acrobot-v1", "appo")
    assert (run.stop.return_, run.stop.steps) == (-100.0, 1_000_000)


def test_what_it_suggests_are_keys_of_a_run() -> None:
    assert cli.main(["new", "Pendulum-v1", "--out", "mine.toml"]) == 0
    text = Path("mine.toml").read_text()
    assert run_file.load("mine.toml").stop.return_ is None
    suggested = re.sub(r"^# (?=\[|\w+ = )", "", text, flags=re.MULTILINE)
    suggested = suggested.replace('"module:factory"', '"gymnasium.wrappers:ClipAction"')
    Path("all.toml").write_text(suggested)
    run = run_file.load("all.toml")
    assert (run.model.core, run.model.hidden, run.stop.return_) == ("lstm", (256, 256), 100.0)


@pytest.mark.parametrize(
    ("env_id", "name"),
    [
        ("headrace/Catch-v0", "catch"),
        ("my.module:make_it", "make-it"),
        ("MiniGrid-DoorKey-5x5-v0", "minigrid-doorkey-5x5"),
        ("ALE/Pong-v5", "pong"),
        ("!", "run"),
    ],
)
def test_a_run_has_the_name_of_its_environment(env_id: str, name: str) -> None:
    assert new_run._name(env_id) == name


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["nothing-v3"], "env.id = 'nothing-v3' cannot be made"),
        (["CartPole-v1", "--out", "there.toml"], "there.toml is there already"),
        (["CartPole-v1", "--out", "no/such/folder.toml"], "cannot be written: No such file"),
    ],
)
def test_what_it_cannot_write_is_one_line(
    words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("there.toml").write_text("mine")
    assert cli.main(["new", *words]) == 2
    said = capsys.readouterr().err
    assert complaint in said and said.count("\n") == 1
    assert Path("there.toml").read_text() == "mine"
