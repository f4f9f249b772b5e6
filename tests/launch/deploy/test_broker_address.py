"""The address of the broker in `headrace units`: refused where peers could not reach it."""

from pathlib import Path

import pytest

from headrace.launch import cli

HERE = "127.0.0.1:5755"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (f"systemd --nodes 2 --broker tcp://{HERE}", "--nodes and --learners ask for 2; give"),
        ("systemd --nodes 4", "broker.bind tcp://127.0.0.1:5755 reaches one machine"),
        ("systemd --nodes 2 --broker tcp://127.0.1.1:5755", "127.0.1.1:5755 reaches one machine"),
        ("systemd --nodes 2 --broker tcp://localhost:5755", "localhost:5755 reaches one machine"),
        ("systemd --nodes 2 --broker tcp://[::1]:5755", "[::1]:5755 reaches one machine"),
        (f"systemd --learners 2 --broker tcp://{HERE}", "ask for 2"),
        ("systemd --broker tcp://0.0.0.0:5755", "0.0.0.0:5755 is where a broker listens"),
        ("systemd --broker tcp://*:5755", "*:5755 is where a broker listens"),
        ("systemd --broker tcp://[::]:5755", "[::]:5755 is where a broker listens"),
        ("systemd --broker tcp://10.0.0.1:0", "10.0.0.1:0 has no port that peers could know"),
        ("systemd --broker tcp://10.0.0.1:*", "10.0.0.1:* has no port that peers could know"),
        ("systemd --broker tcp://10.0.0.1:65535", "and one more for weights"),
        ("supervisor --broker tcp://0.0.0.0:5755", "0.0.0.0:5755 is where a broker listens"),
        ("systemd --nodes 2 --broker ipc:///tmp/b", "--broker ipc:///tmp/b is for one machine"),
        (f"kubernetes --broker tcp://{HERE}", "127.0.0.1:5755 reaches no other pod"),
        ("kubernetes --broker ipc:///tmp/b", "--broker ipc:///tmp/b is for one machine"),
        ("kubernetes --broker tcp://headrace-broker:0", "headrace-broker:0 has no port"),
        ("slurm --broker tcp://10.0.0.1:5755", "--broker is not for headrace units slurm"),
        ("skypilot --broker tcp://10.0.0.1:5755", "--broker is not for headrace units skypilot"),
        ("systemd --broker tcp://10.0.0.1:9100", "take another, such as 5755"),
        ("systemd --broker tcp://10.0.0.1:9099", "use 9100, 9101, 9102, 9110, 29400 .."),
        ("systemd --ranks 2 --broker tcp://10.0.0.1:9111", "use 9100, 9101, 9102, 9110, 9111"),
        ("systemd --broker tcp://10.0.0.1:29400", "take another"),
        ("supervisor --nodes 3 --broker tcp://127.0.0.1:9122", "take another"),
    ],
)
def test_an_address_that_cannot_work_is_one_line_and_writes_nothing(
    words: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    batch = ["--set", "pacing.batch_unrolls=4"]
    out = ["--run", "cartpole", "--out", str(tmp_path / "out"), *batch]
    assert cli.main(["units", *words.split(), *out]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and line in said, said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "words",
    [
        "systemd",
        "systemd --broker ipc:///tmp/b",
        "systemd --nodes 2 --broker tcp://head.lan:9112",
        "supervisor --nodes 2",
        "kubernetes --nodes 2 --broker tcp://headrace-broker.rl:6000",
        "slurm --nodes 2 --set broker.bind=ipc:///tmp/b",
        "skypilot --nodes 2",
    ],
)
def test_an_address_that_can_work_is_taken(words: str, tmp_path: Path) -> None:
    assert cli.main(["units", *words.split(), "--run", "cartpole", "--out", str(tmp_path)]) == 0
