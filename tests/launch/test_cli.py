"""The command line: what each command is given, and how it refuses."""

import importlib
import inspect
import os
import pkgutil
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.protocol import messages
from headrace.launch import cli, commands, examples
from headrace.launch.bench.gates import learning_gates
from headrace.launch.commands import bench
from headrace.launch.commands.command import Command
from headrace.launch.comparison import sweep
from headrace.launch.config import run_file
from headrace.launch.config.starts import run_folder
from headrace.launch.export import export
from headrace.launch.local import train
from headrace.launch.local.options import Options
from headrace.launch.process import logs, runtime
from headrace.launch.results import play, replay
from headrace.launch.roles import broker, learner, sampler
from headrace.launch.roles.evaluation import evaluator
from headrace.launch.roles.options import PeerOptions


def calls(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, result: int = 0) -> list[Any]:
    """What `module.name` is called with from now on."""
    seen: list[Any] = []

    def record(*words: Any, **named: Any) -> int:
        seen.append((words, named))
        return result

    monkeypatch.setattr(module, name, record)
    return seen


def test_every_command_that_is_declared_can_be_called() -> None:
    declared = [
        command
        for found in pkgutil.iter_modules(commands.__path__, f"{commands.__name__}.")
        for command in vars(importlib.import_module(found.name)).values()
        if isinstance(command, Command)
    ]
    assert declared
    assert sorted(map(id, declared)) == sorted(map(id, cli.COMMANDS.values()))


@pytest.mark.parametrize("name", bench.NAMES)
def test_every_benchmark_has_something_to_do(name: str) -> None:
    assert f'"{name}"' in inspect.getsource(bench._bench) + inspect.getsource(bench._quick)


@pytest.mark.parametrize("command", list(cli.COMMANDS))
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([command, "--help"])
    assert ended.value.code == 0 and command in capsys.readouterr().out


@pytest.mark.parametrize("command", list(cli.COMMANDS))
def test_every_command_has_examples_that_it_takes(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    shown = capsys.readouterr().out
    own = [line for line in examples.command_lines(command) if line.startswith("headrace ")]
    assert own
    for line in examples.command_lines(command):
        assert f"\n  {line}\n" in shown
    for line in own:
        given = cli.parser().parse_args(shlex.split(line)[1:])
        assert given.command == command
        runs = getattr(given, "run", None)
        for run in runs if isinstance(runs, list) else [runs]:
            assert run in (None, "mine.toml", *run_file.shipped())
            for sets in sweep.grid(getattr(given, "set", ()), [1]):
                run_file.load(run if run in run_file.shipped() else "cartpole", sets)


def test_alone_it_shows_the_help(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["headrace"])
    assert cli.main() == 0
    shown = capsys.readouterr()
    assert shown.err == "" and "headrace train cartpole" in shown.out
    # A long name has a line of its own.
    assert all(re.search(rf"\n    {command}[ \n]", shown.out) for command in cli.COMMANDS)


def test_train(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen = calls(monkeypatch, train, "train", 3)
    words = ["cartpole", "--out", str(tmp_path), "--seed", "5", "--stop-return", "20"]
    assert cli.main(["train", *words, "--evaluate", "--record", "--actors", "3"]) == 3
    assert cli.main(["train", *words, "--quiet"]) == 3
    assert cli.main(["train", *words, "--quiet", "--no-evaluate"]) == 3
    ((start, both), _), ((_, neither), _), ((_, without), _) = seen
    run = start.run
    assert (run.run.seed, run.stop.return_, run.actor.count) == (5, 20.0, 3)
    assert (start.out, start.resume) == (tmp_path, False)
    assert both == Options(quiet=False, evaluate=True, record=True)
    assert neither == Options(quiet=True, evaluate=None, record=False)
    assert without == Options(quiet=True, evaluate=False, record=False)


def test_play(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = calls(monkeypatch, play, "play")
    cli.main(["play", "run"])
    words = ["--episodes", "3", "--sampled", "--seed", "9", "--video", "a.gif"]
    cli.main(["play", "run", *words, "--checkpoint", "newest", "--set", "env.stack=2"])
    (folder, plain), (_, full) = seen
    assert folder == (Path("run"),)
    assert plain == {
        "which": None,
        "episodes": 10,
        "greedy": True,
        "seed": None,
        "video": None,
        "sets": [],
    }
    assert full == {
        "which": "newest",
        "episodes": 3,
        "greedy": False,
        "seed": 9,
        "video": Path("a.gif"),
        "sets": ["env.stack=2"],
    }


def test_export_and_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    exported, replayed = (
        calls(monkeypatch, export, "export"),
        calls(monkeypatch, replay, "replay", 1),
    )
    cli.main(["export", "run", "--onnx", "--out", "a.onnx", "--checkpoint", "best"])
    assert exported == [((Path("run"),), {"which": "best", "policy": None, "out": Path("a.onnx")})]
    assert cli.main(["replay", "run"]) == 1
    assert replayed == [((Path("run"),), {})]


def test_evaluate(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = calls(monkeypatch, evaluator, "evaluate")
    cli.main(["evaluate", "--broker", "tcp://a:1", "--name", "eve", "--episodes", "4"])
    assert seen == [
        (
            (PeerOptions("tcp://a:1", "eve", {"episodes": 4}, allow=[], brokers="tcp://a:1"),),
            {"out": None, "beside": (), "done": ()},
        )
    ]


@pytest.mark.parametrize("level", ["info", "warning"])
def test_a_role_that_is_started_again_is_as_quiet(
    monkeypatch: pytest.MonkeyPatch, level: str, tmp_path: Path
) -> None:
    calls(monkeypatch, evaluator, "evaluate")
    calls(monkeypatch, sampler, "sample")
    calls(monkeypatch, broker, "serve")
    calls(monkeypatch, learner, "learn")
    logged = calls(monkeypatch, logs, "start")
    for words in (
        ["broker", "--run", "cartpole"],
        ["learner", "--run", "cartpole", "--out", str(tmp_path)],
        ["actor", "--broker", "tcp://a:1"],
        ["evaluate", "--broker", "tcp://a:1"],
    ):
        assert cli.main(["--log-level", level, *words]) == 0
    assert [named for _, named in logged] == [{"quiet": level == "warning", "form": "human"}] * 4


def test_an_interrupt_before_the_run_has_begun_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "train", interrupted)
    assert cli.main(["train", "cartpole"]) == runtime.LIMIT


@pytest.mark.processes
def test_an_interrupt_while_it_imports_is_no_traceback() -> None:
    stopped = (
        "import sys\n"
        "class Slow:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'msgspec': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Slow())\n"
        "import headrace.launch.cli\n"
    )
    done = subprocess.run([sys.executable, "-c", stopped], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (runtime.LIMIT, "")


def test_resume_continues_what_was_trained_last(tmp_path: Path) -> None:
    def trained(name: str, at: float) -> Path:
        checkpoint = tmp_path / name / "checkpoints" / "000000000001"
        checkpoint.mkdir(parents=True)
        os.utime(checkpoint, (at, at))
        return tmp_path / name

    assert run_folder(tmp_path, "cartpole", newest=True) == tmp_path / "cartpole"
    second = trained("cartpole-2", 200.0)
    assert run_folder(tmp_path, "cartpole", newest=True) == second
    assert run_folder(tmp_path, "cartpole", newest=False) == tmp_path / "cartpole"
    first, _ = trained("cartpole", 300.0), trained("cartpole-impala", 900.0)
    (tmp_path / "cartpole-4" / "checkpoints").mkdir(parents=True)
    assert run_folder(tmp_path, "cartpole", newest=True) == first
    assert run_folder(tmp_path, "cartpole", newest=False) == tmp_path / "cartpole-3"
    begins = tmp_path / "cartpole-3"
    found = run_folder(tmp_path, "cartpole", newest=False, taken=lambda folder: folder == begins)
    assert found == tmp_path / "cartpole-5"


def test_bench_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = calls(monkeypatch, learning_gates, "bench")
    cli.main(["bench", "learn", "acrobot", "catch"])
    cli.main(["bench", "learn", "--runs", "20"])
    assert [words for words, _ in seen] == [(["acrobot", "catch"], 0, []), ([], 20, [])]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["bench", "sampler"], "name the run"),
        (["bench", "solve", "--set", "run.seed=2"], "--set is for sampler, lag, learn, plan only"),
        (["bench", "crowd", "10", "--runs", "3"], "--runs is for learn only"),
        (["bench", "learner", "pong"], "no network pong: mlp, nature, resnet, resnet-lstm"),
        (
            ["bench", "solve", "pong"],
            "a name is for sampler, learn, learner, acting, crowd, lag, plan only",
        ),
        (["config", "cartpoole"], "no shipped run"),
        (["play", "/nowhere"], "/nowhere holds no run"),
        (["export", "/nowhere"], "/nowhere holds no run"),
    ],
)
def test_refusals_are_one_line(
    capsys: pytest.CaptureFixture[str], words: list[str], expected: str
) -> None:
    assert cli.main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("headrace: ") and expected in line


def test_wrong_options_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["play"], ["play", "run", "--checkpoint", "oldest"], ["dance"]):
        with pytest.raises(SystemExit) as ended:
            cli.main(words)
        assert ended.value.code == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_config_prints_a_run_that_loads(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["config", "cartpole", "--set", "learner.lr=0.5"]) == 0
    (tmp_path / "again.toml").write_text(capsys.readouterr().out)
    again = run_file.load(str(tmp_path / "again.toml"))
    assert again == run_file.load("cartpole", ["learner.lr=0.5"])


_LONG = "x" * 300
_ACTOR = ("actor", "--broker", "ipc:///b")


@pytest.mark.parametrize("role", ["actor", "evaluate", "node"])
@pytest.mark.parametrize("name", [_LONG, "a\nb", "\udcff", "\0"])
def test_a_name_that_no_broker_takes_ends_at_the_door(
    role: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else every HELLO is no message, and "no broker answers" for ever."""
    with pytest.raises(SystemExit) as ended:
        cli.main([role, "--broker", "ipc:///b", "--name", name])
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2
    assert "--name" in line and "a name has at most 192 characters" in line


@pytest.mark.parametrize("name", ["n" * 192, "node 7 (Köln)"])
def test_names_that_travel_with_the_number_of_a_nodes_sampler(name: str) -> None:
    given = cli.parser().parse_args(["node", "--broker", "ipc:///b", "--name", name])
    hello = messages.Hello("actor", f"{given.name}-1023", 1, run="r" * 64, spaces="s" * 32)
    frames: list[Any] = messages.encode(hello)
    assert messages.decode(frames)[0] == hello


@pytest.mark.parametrize(
    "words",
    [
        [*_ACTOR, "--key", "a\0b"],
        [*_ACTOR, "--shelf", _LONG],
        [*_ACTOR, "--ledger", _LONG],
        [*_ACTOR, "--seed", "-1"],
        [*_ACTOR, "--seed", "9" * 40],
        [*_ACTOR, "--groups", "0"],
        ["node", "--broker", "ipc:///b", "--groups", "-3"],
        ["broker", "--run", f"{_LONG}.toml"],
        ["learner", "--run", "cartpole", "--broker", "ipc:///b", "--out", _LONG],
        ["train", "cartpole", "--out", _LONG],
        ["report", _LONG],
        ["play", _LONG],
        ["export", _LONG],
        ["replay", _LONG],
        ["audit", _LONG],
        ["keygen", _LONG],
    ],
    ids=lambda words: " ".join(words)[:40],
)
def test_what_cannot_be_ends_with_one_line_and_status_2(
    words: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    try:
        status = cli.main(words)
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else -1
    assert status == 2
    assert len(capfd.readouterr().err.splitlines()) == 1
