"""`headrace audit`: its table, its words and its exit status."""

from pathlib import Path

import pytest

from headrace.launch import cli

ACTOR = "P actor 7 node 1\n" + "".join(f"G 7 0 {seq} 32\n" for seq in range(1200))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """One sampler that ended in order, and one that was killed."""
    ledger = tmp_path / "ledger"
    ledger.mkdir()
    (ledger / "actor-7.log").write_text(
        ACTOR + "A 7 0 0 1100 trained\nA 7 0 1100 1150 stale\nX 7 0 1150 1200\nE\n"
    )
    (ledger / "actor-8.log").write_text("P actor 8 node 2\nG 8 0 0 32\nG 8 0 1 32\nG 8")
    (ledger / "broker-1.log").write_text("W 6\nB 7 0 1100 1150 stale\n")
    (ledger / "learner-1.log").write_text(
        "P learner 1 learner-0\nV 0 5\nt 7 0 0 1100\nv 1 551 2\nT 8 0 0 551\n"
    )
    return tmp_path


def audit(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    status = cli.main(["audit", str(folder)])
    said = capsys.readouterr()
    return status, (said.err or said.out).splitlines()


def test_an_exact_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, lines = audit(run, capsys)
    assert status == 0
    assert [" ".join(line.split()) for line in lines] == [
        "sampler incarnation ended generated trained stale shed rejected poison abandoned in"
        " flight",
        "node 1 7 in order 1,200 1,100 50 0 0 0 50 0",
        "node 2 8 runs or killed 2 1 0 0 0 0 0 1",
        "all 2 1 in order 1,202 1,101 50 0 0 0 50 1",
        "",
        "stale: waited too long for their turn (pacing.max_lag_hard)",
        "abandoned: left unused when their sampler ended, as some are at every end of a run",
        "trained twice 0, rolled back 0",
        "exact",
    ]
    assert len({len(line) for line in lines[:4]}) == 1  # columns
    assert audit(run / "ledger", capsys) == (status, lines)


@pytest.mark.parametrize(
    ("name", "more", "words"),
    [
        ("actor-7.log", "A 7 0 0 1 stale\n", "gap: 1 unrolls ended in two ways"),
        ("actor-7.log", "G 7 0 1200 32\n", "1 unrolls too many are in flight of node 1 (7)"),
        ("actor-8.log", "\n" + "".join(f"G 8 1 {n} 1\n" for n in range(6)), "it may have 6 open"),
        ("actor-8.log", "\nA 8 0 1 2 trained\n", "gap: 1 unrolls said to be trained, but in no"),
        ("actor-8.log", "\nA 8 0 1 2 shed\n", "gap: 1 unrolls acknowledged with an outcome that"),
        ("learner-1.log", "T 9 0 0 3\n", "gap: 1 unrolls ended, but in no sampler's ledger"),
        ("broker-1.log", "?\n", "damage: broker-1.log, line 3 is no line: '?'"),
    ],
)
def test_every_gap_is_said(
    name: str, more: str, words: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (run / "ledger" / name).open("a") as file:
        file.write(more)
    status, lines = audit(run, capsys)
    assert status == 1
    assert any(words in line for line in lines), lines
    assert lines[-1] == "NOT exact"


def test_a_broker_without_a_ledger_is_said(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "ledger" / "broker-1.log").unlink()
    status, lines = audit(run, capsys)
    assert status == 0
    assert "no broker's ledger" in lines[-2]


def test_wrong_input_is_one_line(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder, words in ((run / "nothing", "no such folder"), (Path("/dev/null"), "no such")):
        status, lines = audit(folder, capsys)
        assert (status, len(lines)) == (2, 1)
        assert words in lines[0]
    empty = run / "empty"
    empty.mkdir()
    status, lines = audit(empty, capsys)
    assert (status, len(lines)) == (2, 1)
    assert "--ledger" in lines[0]
    for path in (run / "ledger").glob("actor-*.log"):
        path.unlink()
    status, lines = audit(run, capsys)
    assert (status, len(lines)) == (2, 1)
    assert "no sampler's ledger" in lines[0]
